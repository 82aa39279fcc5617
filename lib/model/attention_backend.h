#pragma once
// Where a cache plugs into a model, and where calibration listens. The model computes projections and hands over keys
// *before* RoPE (after bias and QK norm); rotating, storing and attending is the backend's work.

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <kvq/core/kv_shape.h>

namespace kvq {

/// One layer's attention over consecutive tokens of one sequence.
struct AttentionInput {
  int layer = 0;
  std::int64_t first_position = 0;  ///< position of token 0 of the tensors below
  at::Tensor query;                 ///< `[tokens, heads, head_dim]`, before RoPE
  at::Tensor key;                   ///< `[tokens, kv_heads, head_dim]`, before RoPE
  at::Tensor value;                 ///< `[tokens, kv_heads, head_dim]`
  bool bf16 = false;  ///< backends that attend through libtorch multiply bf16 operands (attention_operand)
};

/// Holds the state of one sequence (all layers). Appends keys and values, then answers the queries; query t sees the
/// cache as it stands after appending t. State depends on the token sequence only, never on how it was cut in calls.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  /// Result `[tokens, heads, head_dim]`, dtype of the query. Calls for a layer come in order of position.
  virtual at::Tensor attend(const AttentionInput& input) = 0;
  /// Forgets the sequence.
  virtual void reset() = 0;
  /// The first `tokens` tokens of sequences to come are the prompt, until another number is said. Before the first
  /// token of a sequence; for caches that choose at its end what to keep. Others do nothing.
  virtual void set_prompt(std::int64_t tokens) { (void)tokens; }
};

/// Sees what passes a layer, without changing it. Called on the tensors that carry gradients when there are any.
class KvObserver {
 public:
  virtual ~KvObserver() = default;
  virtual void observe(const AttentionInput& input) = 0;
};

}  // namespace kvq
