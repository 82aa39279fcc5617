#pragma once
// The cache that holds packed bits on the GPU. Keys, values and queries of a call are encoded and attended to there by
// the kernels of kernels/cuda. Of a model that runs on the CPU they are copied over, and the result comes back; of one
// that runs on the GPU they are used where they are.

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/cache/kv_cache.h>
#include <kvq/cuda/cuda_layer.h>
#include <kvq/cuda/overflow_blocks.h>
#include <kvq/model/rope.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// One sequence. The bytes of its pages are those of PackedCache, but for the numbers of overflow blocks. Not
/// thread-safe.
class CudaCache final : public KvCache {
 public:
  /// Throws Device without a usable GPU, Usage for a recipe and Mismatch for a shape that the kernels do not know.
  explicit CudaCache(std::shared_ptr<const Quantizer> quantizer);

  /// Throws what PackedCache::attend throws; Device for failures of the GPU.
  at::Tensor attend(const AttentionInput& input) override;
  void reset() override;
  std::int64_t tokens() const override { return layers_.empty() ? 0 : layers_.back().length(); }
  std::int64_t bytes() const override;

  const CudaLayer& layer(int index) const { return layers_[static_cast<std::size_t>(index)]; }

 private:
  void append(int layer, const at::Tensor& key, const at::Tensor& value);
  /// Codes of recipes that round head vectors, for the append that follows.
  void round(const CudaLayer& layer, cuda::QuantizeAppend& append);
  /// `query`, `result`: `[tokens, heads, head_dim]` fp32; query t sees first_position + t + 1 tokens.
  void answer(int layer, std::int64_t first_position, const at::Tensor& query, const at::Tensor& result);
  void reserve_rope(std::int64_t tokens);
  void refuse_what_did_not_fit(int layer, std::int64_t first_token, const at::Tensor& key, const at::Tensor& value);

  std::shared_ptr<const Quantizer> quantizer_;
  std::vector<CudaLayer> layers_;
  OverflowBlocks overflow_;
  RopeTable rope_;
  cuda::RopeTables angles_;
  DeviceArray<std::uint8_t> angle_memory_, workspace_;
  DeviceArray<float> key_, value_, query_, result_;
  DeviceArray<float> rotated_, ranges_;
  DeviceArray<std::uint8_t> key_codes_, value_codes_;
  DeviceArray<std::uint16_t> key_exact_;
  DeviceArray<std::int32_t> lengths_, rows_;
  DeviceArray<std::uint32_t> arrivals_;
  DeviceArray<cuda::AppendReport> report_;
};

}  // namespace kvq
