#pragma once
// Attention straight from packed pages. A page of one kv head is decoded into scratch memory that stays in the cache of
// a core, its keys are rotated there by their slots (rope_angles.h), and all queries of a block are answered: each page
// is read once per kv head and block of queries. Nothing else is ever decoded.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/cache/attention_task.h>
#include <kvq/cache/packed_sequence.h>

namespace kvq {

/// Keeps the scratch memory of its threads. Not thread-safe.
class PackedAttention {
 public:
  explicit PackedAttention(int threads) : threads_(threads) {}

  /// Queries of the last positions of a layer: `[tokens, heads, head_dim]` fp32 before RoPE; `out` of the same shape.
  /// Query t sees the positions up to its own. The result does not depend on the number of threads.
  void attend(const PackedSequence& sequence, int layer, std::span<const float> query, std::span<float> out);

 private:
  void run(std::vector<AttentionTask>& tasks);

  int threads_;
  std::vector<AttentionScratch> scratch_;  ///< by thread
  std::vector<float> rotated_;
};

}  // namespace kvq
