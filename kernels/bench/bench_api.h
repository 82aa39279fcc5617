#pragma once
// What kvq-bench (Python, because its peer is torch) calls: plain C functions over one prepared problem.

#include <cstdint>

#define KVQ_BENCH_EXPORT extern "C" __attribute__((visibility("default")))

/// Shape of a problem; filled by Python through ctypes, hence only doubles and 64-bit integers.
struct KvqBenchShape {
  std::int64_t batch, heads, kv_heads, head_dim, tokens, key_bits, value_bits;
  /// 0, or kvq recipes: keys have rows of widths of their own, values this number of levels and no outliers, and both
  /// are rounded with feedback.
  std::int64_t value_levels;
  std::int64_t icm;  ///< passes of refinement, with them
  double outliers;   ///< fraction of either side; 0: none
};

KVQ_BENCH_EXPORT void* kvq_bench_create(const KvqBenchShape* shape);
KVQ_BENCH_EXPORT void kvq_bench_destroy(void* problem);
/// Sizes and offsets by name: page_bytes, key_codes, ranges, key_values, … ; -1 for a name that does not exist.
KVQ_BENCH_EXPORT std::int64_t kvq_bench_number(void* problem, const char* name);
/// Device pointers by the names that bench_api.cu lists.
KVQ_BENCH_EXPORT void kvq_bench_point(void* problem, const char* name, void* pointer);
/// Host memory: radians per position.
KVQ_BENCH_EXPORT int kvq_bench_rope(void* problem, const double* inverse_frequencies, void* memory, void* stream);
/// kvq::cuda::Status as a number.
KVQ_BENCH_EXPORT int kvq_bench_decode(void* problem, void* stream);
KVQ_BENCH_EXPORT int kvq_bench_append(void* problem, std::int64_t most_tokens, void* stream);
/// Reads `bytes` and keeps nothing: the memory's speed.
KVQ_BENCH_EXPORT int kvq_bench_read(const void* from, std::int64_t bytes, void* to, int blocks, int threads,
                                    void* stream);
