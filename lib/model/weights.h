#pragma once
// Weights in the form the forward pass wants, expanded from the memory map layer by layer.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/linear.h>
#include <kvq/model/model_source.h>

namespace kvq {

/// One layer. Matrices `[out, in]` of weight_type(mode), norms and biases fp32. Q, K and V are one matrix, so are gate
/// and up: fewer and wider products. Rows of Q and K are in Hugging Face's order.
struct LayerWeights {
  at::Tensor attention_norm;  ///< `[hidden]`
  at::Tensor qkv, qkv_bias;   ///< `[(heads + 2 kv_heads) * head_dim, hidden]`; bias undefined when there is none
  at::Tensor o, o_bias;       ///< `[hidden, heads * head_dim]`
  at::Tensor q_norm, k_norm;  ///< `[head_dim]`; undefined where heads are not normalised
  at::Tensor mlp_norm;        ///< `[hidden]`
  at::Tensor gate_up;         ///< `[2 * intermediate, hidden]`
  at::Tensor down;            ///< `[hidden, intermediate]`
  at::Tensor post_attention_norm, post_mlp_norm;  ///< `[hidden]`; undefined where there are none
};

class BlockWeights;

class WeightStore {
 public:
  /// `budget_bytes`: what expanded layers may hold; the output matrix comes on top. `replaced`, if given, has the
  /// blocks' matrices. Weights are expanded by the CPU and copied to `device`.
  WeightStore(ModelSource source, LinearMode mode, std::int64_t budget_bytes,
              std::shared_ptr<BlockWeights> replaced = nullptr, Device device = Device::Cpu);

  const ModelSource& source() const { return source_; }
  /// Valid until another layer is asked for. As passes go through all layers in turn, the first ones that fit are kept
  /// for good and the others share one place.
  const LayerWeights& layer(int index);
  const at::Tensor& output_norm();  ///< `[hidden]`
  const at::Tensor& output();       ///< `[vocab, hidden]`
  /// Embeddings `[ids, hidden]` fp32 on the CPU, read from the map row by row, scaled. Ids are in range.
  at::Tensor embed(std::span<const std::int32_t> ids) const;
  std::int64_t layer_bytes() const;
  /// Model::weight_bytes_to_come().
  std::int64_t bytes_to_come() const;

 private:
  LayerWeights expand(int index) const;  ///< on the CPU
  LayerWeights placed(int index) const;  ///< on the device
  at::Tensor on_device(const at::Tensor& x) const;
  at::Tensor norm(const std::string& name, std::int64_t width) const;

  ModelSource source_;
  LinearMode mode_;
  std::shared_ptr<BlockWeights> replaced_;
  Device device_;
  int kept_layers_ = 0;  ///< layers [0, kept_layers_) stay
  std::vector<std::optional<LayerWeights>> kept_;
  LayerWeights passing_;
  int passing_index_ = -1;
  at::Tensor output_norm_, output_;
};

}  // namespace kvq
