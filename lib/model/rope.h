#pragma once
// Rotary embedding on tensors, and the unquantized backend.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/core/kv_shape.h>
#include <kvq/model/attention_backend.h>

namespace kvq {

/// cos and sin tables, `[positions, rotary_dim / 2]` each; angles are computed in double, stored in fp32.
class RopeTable {
 public:
  explicit RopeTable(const RopeParams& params);
  explicit RopeTable(const ModelRope& rope) = delete;  ///< it has one for each kind of layer: RopeTables
  /// Rotates `[tokens, heads, head_dim]` of any float dtype, on any device; token t stands at first_position + t.
  /// Differentiable.
  at::Tensor apply(const at::Tensor& x, std::int64_t first_position);

 private:
  struct Angles {
    at::Tensor cosine, sine;
  };
  void grow(std::int64_t positions);
  /// On the device of x.
  const Angles& angles_beside(const at::Tensor& x);

  RopeParams params_;
  Angles host_, elsewhere_;  ///< on the CPU, and a copy on the other device that asked last
  std::int64_t positions_ = 0;
};

/// The tables of all layers of a model.
class RopeTables {
 public:
  explicit RopeTables(const ModelRope& rope)
      : rope_(rope), everywhere_(static_cast<const RopeParams&>(rope)), local_(rope.local) {}
  RopeTable& of(int layer) { return rope_.local_at(layer) ? local_ : everywhere_; }

 private:
  ModelRope rope_;
  RopeTable everywhere_, local_;
};

/// Causal attention of queries at `first_position …` over keys of positions 0 … (both rotated), GQA native, never a
/// [heads, tokens, tokens] tensor in memory for a whole long window. All `[tokens, heads or kv_heads, head_dim]`.
/// `window` > 0: a query sees its own token and the window - 1 before it.
at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                            std::int64_t first_position, std::int64_t window = 0);

/// The exact cache (`none`): keeps rotated keys and values as they are.
class ExactAttention final : public AttentionBackend {
 public:
  ExactAttention(const KvShape& shape, const ModelRope& rope);
  at::Tensor attend(const AttentionInput& input) override;
  void reset() override;

 private:
  /// Tokens so far, at the front of a tensor with room for more.
  struct Grown {
    at::Tensor store;  ///< `[room, kv_heads, head_dim]`
    std::int64_t length = 0;
    void append(const at::Tensor& more);
    at::Tensor all() const { return store.narrow(0, 0, length); }
  };
  struct Layer {
    Grown key, value;
  };
  ModelRope rope_;
  RopeTables tables_;
  std::vector<Layer> layers_;
};

}  // namespace kvq
