#pragma once
// What a launch of the decode kernel passes to it: the plan and the pointers of DecodeAttention, resolved.

#include <cuda_runtime_api.h>

#include <cstdint>

#include <kvq/kernels/cuda/code_rows.h>
#include <kvq/kernels/cuda/decode_plan.h>

namespace kvq::cuda {

struct DecodeParams {
  DecodePlan plan;
  layout::PageLayout page;
  const std::uint8_t *pages, *key_overflow;
  const std::uint32_t* block_table;
  std::int64_t block_table_stride;
  const std::int32_t* lengths;
  std::int32_t sinks;
  const std::uint16_t *sink_keys, *sink_values;
  std::int64_t sink_stride;
  const RowInfo* key_rows;
  LevelRows value_rows;
  const float *key_zero, *key_scale, *key_decoded, *value_decoded;
  std::int32_t key_books, value_books;
  float key_unit, value_unit;  ///< 2^exponent
  const std::uint64_t* turns;
  const std::uint32_t *key_angles, *base_angles, *ratios;
  std::int32_t fast_steps;
  const void* query;
  void* output;
  std::int32_t query_type, output_type;
  std::int32_t heads, queries;  ///< query heads, and how many of them per kv head
  std::int32_t query_sets;      ///< blocks that share the queries of a kv head, kBlockQueries each at most
  std::int32_t splits;
  float score_scale;       ///< softmax_scale * log2(e)
  std::uint32_t* arrived;  ///< [batch * query_sets, kv_heads]: blocks that are done; zeros before and after a launch
  float* partials;         ///< [batch, heads, splits, head_dim]
  float2* normals;         ///< [batch, heads, splits]: largest score, sum of weights
};

}  // namespace kvq::cuda
