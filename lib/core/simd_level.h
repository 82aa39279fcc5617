#pragma once
// Instruction sets that the library's inner loops are compiled for, chosen at run time.

namespace kvq {

enum class SimdLevel { Portable, Avx2, Avx512 };  ///< Avx2 with FMA

/// What this CPU offers.
SimdLevel best_simd_level();

}  // namespace kvq

// GCC only: Clang knows no `#pragma GCC target`, and gets the portable loops at whatever level it is told to compile
// for.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KVQ_SIMD_LEVELS 1
#endif
