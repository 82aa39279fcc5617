#pragma once
// Causal attention by libtorch's operations, for tensors of any device: blocks of queries against the keys that they
// see, each block's scores in memory at once, in the backward pass made anew. The same bits from run to run: no atomic
// sums, which the fused kernels' gradients of keys and values are made of.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace kvq {

/// Scores of a block's queries stay below about this many bytes (one query's may be more).
inline constexpr std::int64_t kScoreBytes = std::int64_t{256} << 20;

/// Scores of queries `[tokens, heads, head_dim]` at `first_position` … over keys `[first_position + tokens, kv_heads,
/// head_dim]`, both after RoPE, fp32 or bf16. `window` > 0: a query sees its own token and the window - 1 before it.
class BlockedScores {
 public:
  BlockedScores(const at::Tensor& query, const at::Tensor& keys, std::int64_t first_position, std::int64_t window);

  /// Queries [first, first + count), which see none but the keys [begin, end).
  struct Block {
    std::int64_t first, count, begin, end;
    std::int64_t keys() const { return end - begin; }
  };
  std::vector<Block> blocks() const;

  /// Rows of the tensors below: by token, then query head of the kv head.
  std::int64_t group() const { return group_; }
  /// `[tokens, heads, head_dim]` to `[kv_heads, tokens · group, head_dim]` and back.
  at::Tensor rows(const at::Tensor& x) const;
  at::Tensor heads(const at::Tensor& rows) const;
  at::Tensor rows_of(const at::Tensor& rows, const Block& block) const {
    return rows.narrow(1, block.first * group_, block.count * group_);
  }
  /// `[length, kv_heads, head_dim]` to `[kv_heads, keys of the block, head_dim]`.
  at::Tensor seen(const at::Tensor& x, const Block& block) const {
    return x.narrow(0, block.begin, block.keys()).permute({1, 0, 2});
  }

  /// q·k / √head_dim, −∞ where a query does not see the key: `[kv_heads, count · group, keys]` fp32.
  at::Tensor scores(const Block& block) const;
  at::Tensor query_rows(const Block& block) const { return rows_of(query_, block); }

 private:
  at::Tensor query_, keys_;  ///< rows; `[length, kv_heads, head_dim]`
  std::int64_t tokens_, kv_heads_, group_, head_dim_, first_position_, window_;
};

/// a · b of each entry of the batch, fp32 products and sums of fp32 or bf16 operands.
at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b);

/// As causal_attention (rope.h). Differentiable; the graph keeps the three tensors alone.
at::Tensor blocked_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                             std::int64_t first_position, std::int64_t window);

}  // namespace kvq
