#pragma once
// The bound of every code of single symbols: Shannon's entropy.

#include <array>
#include <cstdint>
#include <span>

namespace kvq {

/// How often each of 256 symbols stands in `codes`.
std::array<std::uint64_t, 256> count_symbols(std::span<const std::uint8_t> codes);

/// -Σ p log2 p in bits per symbol, p = count / sum; 0 without symbols.
double shannon_bits(std::span<const std::uint64_t> counts);

/// -Σ p log2 q: what symbols of `counts` take on average in a code that was made for `model`. Infinite where a symbol
/// is counted that the model does not have.
double cross_bits(std::span<const std::uint64_t> counts, std::span<const std::uint64_t> model);

}  // namespace kvq
