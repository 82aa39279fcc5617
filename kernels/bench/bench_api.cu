#include <kvq/kernels/bench/bench_api.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/cuda/quantize_append.h>
#include <kvq/kernels/cuda/round_blocks.h>
#include <kvq/kernels/layout/grouped_codes.h>

using namespace kvq;

namespace {

struct Problem {
  cuda::DecodeAttention decode;
  cuda::QuantizeAppend append;
  cuda::RoundBlocks round;
  std::map<std::string, std::int64_t> numbers;
  std::map<std::string, void*> pointers;

  template <typename T>
  void get(const char* name, T*& pointer) const {
    const auto found = pointers.find(name);
    pointer = found == pointers.end() ? nullptr : static_cast<T*>(found->second);
  }
  /// Pointers by name into the arguments of both launches.
  void resolve() {
    cuda::PackedLayer& cache = decode.cache;
    get("pages", cache.pages), get("block_table", cache.block_table), get("lengths", cache.lengths);
    get("key_overflow", cache.key_overflow);
    get("key_zero", cache.key.zero), get("key_scale", cache.key.scale), get("key_decoded", cache.key.decoded);
    get("value_decoded", cache.value.decoded);
    get("query", decode.query), get("output", decode.output), get("workspace", decode.workspace);
    get("arrivals", decode.arrivals);
    get("pages", append.pages), get("block_table", append.block_table), get("append_lengths", append.lengths);
    get("first", append.first), get("key", append.key), get("value", append.value);
    get("key_lower", append.key_tables.lower), get("key_upper", append.key_tables.upper);
    get("key_boundaries", append.key_tables.boundaries), get("value_boundaries", append.value_tables.boundaries);
    get("key_rows", cache.key.rows);
    if (round.key_tables.rounds) resolve_rounding();
    get("key_overflow", append.key_overflow), get("free_blocks", append.free_blocks);
    get("free_count", append.free_count), get("report", append.report);
  }
  void resolve_rounding() {
    append.key_tables.rows = decode.cache.key.rows;
    round.key = append.key, round.value = append.value;
    get("value_ranges", round.value_ranges);
    get("key_codes", append.rounded_key.codes), get("key_exact", append.rounded_key.exact);
    get("value_codes", append.rounded_value.codes), get("value_rotated", append.rounded_value.x);
    round.rounded_key = append.rounded_key, round.rounded_value = append.rounded_value;
    cuda::RoundTables &key = round.key_tables, &value = round.value_tables;
    get("key_zero", key.zero), get("key_scale", key.scale), get("key_inverse", key.inverse);
    get("key_lower", key.lower), get("key_upper", key.upper), get("rotation", value.rotation);
    get("key_round_decoded", key.decoded), get("value_decoded", value.decoded);
    get("key_round_boundaries", key.boundaries), get("value_round_boundaries", value.boundaries);
    get("key_most", key.most_boundaries), get("value_most", value.most_boundaries);
    get("key_book", key.book), get("value_book", value.book);
    for (cuda::RoundTables* tables : {&key, &value}) {
      get("order", tables->order), get("updates", tables->updates), get("hessian", tables->hessian);
      get("inverse_diagonal", tables->inverse_diagonal);
    }
  }
};

__global__ void read_kernel(const uint4* from, std::size_t count, uint4* to) {
  uint4 sum = {};
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t at = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; at + 3 * step < count; at += 4 * step) {
    uint4 four[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) four[i] = __ldcs(from + at + i * step);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.x ^= four[i].x, sum.y ^= four[i].y, sum.z ^= four[i].z, sum.w ^= four[i].w;
  }
  if ((sum.x ^ sum.y ^ sum.z ^ sum.w) == 0x12345u) *to = sum;
}

}  // namespace

void* kvq_bench_create(const KvqBenchShape* shape) {
  auto* problem = new Problem;
  layout::SideShape key, value;
  key.kv_heads = value.kv_heads = static_cast<int>(shape->kv_heads);
  key.head_dim = value.head_dim = static_cast<int>(shape->head_dim);
  key.bits = static_cast<int>(shape->key_bits), value.bits = static_cast<int>(shape->value_bits);
  value.token_ranges = true;
  if (shape->value_levels > 0) {
    const auto levels = static_cast<int>(shape->value_levels);
    key.head_code_bits = std::int64_t{layout::kPageTokens} * key.bits * key.head_dim;
    value.head_code_bits = value.head_dim * layout::grouped_row_bits(levels, layout::kPageTokens);
    problem->decode.cache.value.levels = problem->append.value_tables.levels = levels;
    cuda::RoundBlocks& round = problem->round;
    round.kv_heads = key.kv_heads, round.head_dim = key.head_dim, round.type = cuda::Number::Bfloat16;
    round.key_tables.rounds = round.value_tables.rounds = true;
    round.key_tables.icm = round.value_tables.icm = static_cast<int>(shape->icm);
    round.key_tables.books = 5, round.value_tables.rotation_block = value.head_dim;
  }
  if (shape->outliers > 0) {
    key.varying_outliers = true;
    key.outlier_capacity = layout::outlier_page_capacity(shape->outliers, key.width());
    if (shape->value_levels == 0)
      value.outliers_per_end = std::max(1, static_cast<int>(std::lround(shape->outliers * value.width() / 2)));
  }
  const layout::PageLayout page = layout::page_layout(key, value);
  cuda::DecodeAttention& decode = problem->decode;
  decode.cache.page = page;
  decode.cache.block_table_stride = layout::pages(shape->tokens);
  decode.batch = static_cast<int>(shape->batch), decode.heads = static_cast<int>(shape->heads);
  decode.max_length = shape->tokens;
  decode.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape->head_dim)));
  problem->append.page = page;
  problem->append.block_table_stride = decode.cache.block_table_stride;
  problem->append.batch = decode.batch;
  problem->append.type = cuda::Number::Bfloat16;
  const layout::OverflowBlock block = layout::overflow_block(page.key);
  problem->numbers = {{"page_bytes", page.bytes},
                      {"key_codes", page.key_parts.codes},
                      {"ranges", page.value_parts.ranges},
                      {"key_values", page.key_parts.outlier_values},
                      {"value_values", page.value_parts.outlier_values},
                      {"key_channels", page.key_parts.outlier_channels},
                      {"value_channels", page.value_parts.outlier_channels},
                      {"key_tokens", page.key_parts.outlier_tokens},
                      {"value_tokens", page.value_parts.outlier_tokens},
                      {"key_counts", page.key_parts.outlier_counts},
                      {"value_counts", page.value_parts.outlier_counts},
                      {"key_link", page.key_parts.overflow_link},
                      {"capacity", key.outlier_capacity},
                      {"entries", value.entries_per_token()},
                      {"block_bytes", block.bytes},
                      {"block_link", block.link},
                      {"block_channels", block.channels},
                      {"block_tokens", block.tokens},
                      {"rope_bytes", static_cast<std::int64_t>(cuda::rope_table_bytes(key.head_dim, shape->tokens))},
                      {"workspace_bytes", static_cast<std::int64_t>(cuda::decode_workspace_bytes(decode))}};
  decode.workspace_bytes = static_cast<std::size_t>(problem->numbers["workspace_bytes"]);
  return problem;
}

void kvq_bench_destroy(void* problem) { delete static_cast<Problem*>(problem); }

std::int64_t kvq_bench_number(void* problem, const char* name) {
  const auto& numbers = static_cast<Problem*>(problem)->numbers;
  const auto found = numbers.find(name);
  return found == numbers.end() ? -1 : found->second;
}

void kvq_bench_point(void* problem, const char* name, void* pointer) {
  static_cast<Problem*>(problem)->pointers[name] = pointer;
  static_cast<Problem*>(problem)->resolve();
}

int kvq_bench_rope(void* problem, const double* inverse_frequencies, void* memory, void* stream) {
  cuda::DecodeAttention& decode = static_cast<Problem*>(problem)->decode;
  return static_cast<int>(cuda::build_rope_tables(inverse_frequencies, decode.cache.page.key.head_dim,
                                                  decode.max_length, memory, decode.rope,
                                                  static_cast<cuda::Stream>(stream)));
}

int kvq_bench_decode(void* problem, void* stream) {
  return static_cast<int>(
      cuda::decode_attention(static_cast<Problem*>(problem)->decode, static_cast<cuda::Stream>(stream)));
}

int kvq_bench_append(void* problem, std::int64_t most_tokens, void* stream) {
  cuda::QuantizeAppend& append = static_cast<Problem*>(problem)->append;
  append.most_tokens = static_cast<std::int32_t>(most_tokens);
  if (cuda::RoundBlocks& round = static_cast<Problem*>(problem)->round; round.key_tables.rounds) {
    round.tokens = most_tokens * append.batch;
    const auto status = cuda::round_blocks(round, static_cast<cuda::Stream>(stream));
    if (status != cuda::Status::Ok) return static_cast<int>(status);
  }
  return static_cast<int>(cuda::quantize_append(append, static_cast<cuda::Stream>(stream)));
}

int kvq_bench_read(const void* from, std::int64_t bytes, void* to, int blocks, int threads, void* stream) {
  read_kernel<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(from), static_cast<std::size_t>(bytes / 16), static_cast<uint4*>(to));
  return static_cast<int>(cudaGetLastError());
}
