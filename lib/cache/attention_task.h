#pragma once
// Attention of a few queries over a range of pages, for some kv heads: the unit of work of PackedAttention.

#include <cstdint>
#include <vector>

#include <kvq/cache/aligned_floats.h>
#include <kvq/cache/packed_sequence.h>

namespace kvq {

/// Queries of one sequence that stand in the same page.
struct QueryBlock {
  /// `[tokens, heads, head_dim]`, times 1 / sqrt(head_dim), rotated by their slots (and by their page, where keys are
  /// stored rotated).
  const float* query = nullptr;
  std::int64_t first_position = 0;
  int tokens = 0;
};

/// What a range of pages says to the queries of one kv head; row = token * (heads / kv_heads) + query head.
struct PartialResult {
  int stride = 0;
  std::vector<float> largest;  ///< `[rows]` score; -infinity before the first token
  std::vector<double> total;   ///< `[rows]` sum of e^(score - largest)
  std::vector<float> sum;      ///< `[rows][stride]`: the values, weighted so; the first head_dim of stride
};

/// What a thread needs, kept from task to task.
struct AttentionScratch {
  std::vector<OpenPage> open[2];               ///< by Side
  std::vector<std::vector<float>> waiting[2];  ///< of each opened page `[tokens, kv_heads, head_dim]`
  AlignedFloats query, turned, scores, scores_of_waiting, block, transposed, lane_sums;
};

struct AttentionTask {
  const PackedSequence* sequence = nullptr;
  int layer = 0;
  QueryBlock block;
  std::int64_t first_page = 0, last_page = 0;  ///< one behind the last
  int first_head = 0, last_head = 0;
  std::vector<PartialResult> results;  ///< by kv head, from first_head on

  void run(AttentionScratch& scratch);
};

}  // namespace kvq
