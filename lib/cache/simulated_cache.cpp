#include <kvq/cache/simulated_cache.h>

#include <algorithm>
#include <span>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/cache/cache_checks.h>
#include <kvq/core/error.h>
#include <kvq/model/linear.h>

namespace kvq {

/// Tokens so far at the front of a tensor with room for more.
struct SimulatedCache::Stored {
  at::Tensor store;  ///< `[room, kv_heads, head_dim]`

  void append(const at::Tensor& more, std::int64_t length) {
    const std::int64_t needed = length + more.size(0);
    if (length == 0) {
      store = more;
      return;
    }
    if (needed >
        store.size(0)) {  // doubling: a token by token continuation copies each token a constant number of times
      at::Tensor larger = at::empty({std::max(2 * store.size(0), needed), more.size(1), more.size(2)}, more.options());
      larger.narrow(0, 0, length).copy_(store.narrow(0, 0, length));
      store = larger;
    }
    store.narrow(0, length, more.size(0)).copy_(more);
  }
};

struct SimulatedCache::Layer {
  std::vector<SideEncoder> encoders;  ///< by Side; none for an unquantized recipe
  std::int64_t length = 0;            ///< tokens so far
  Stored key, value;
  std::vector<std::uint32_t> outliers[2];  ///< by Side; exact values per token, 0 for sinks
};

SimulatedCache::SimulatedCache(std::shared_ptr<const Quantizer> quantizer, int threads, CacheParts parts)
    : quantizer_(std::move(quantizer)), threads_(threads), parts_(std::move(parts)), rope_(quantizer_->rope) {
  for (const int layer : parts_.layers) {
    if (layer < 0 || layer >= quantizer_->shape.layers) {
      fail(ErrorKind::Usage, fmt::format("layer {} cannot be quantized by itself: the model has layers 0 to {}", layer,
                                         quantizer_->shape.layers - 1));
    }
  }
  layers_.resize(static_cast<std::size_t>(quantizer_->shape.layers));
  if (!quantizer_->recipe.quantized) return;
  if (quantizer_->layers.size() != layers_.size()) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has {} layers, but its shape says {}", quantizer_->layers.size(), layers_.size()));
  }
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const Side side : kSides) layers_[layer].encoders.emplace_back(quantizer_->layers[layer].side(side));
  }
}

SimulatedCache::~SimulatedCache() = default;

/// Quantizes `x`, contiguous fp32 `[tokens, kv_heads, head_dim]`, in place.
void SimulatedCache::quantize(const at::Tensor& x, const AttentionInput& input, Side side) {
  Layer& layer = layers_[static_cast<std::size_t>(input.layer)];
  const SideEncoder& encoder = layer.encoders[static_cast<std::size_t>(side)];
  const Recipe& recipe = quantizer_->recipe;
  if (recipe.side(side).range == RangeKind::Window && input.first_position != 0) {
    fail(ErrorKind::Usage,
         fmt::format("range=window takes the range of the whole window, but token {} comes in a later call: "
                     "such a recipe cannot continue a text",
                     input.first_position));
  }
  const std::int64_t tokens = x.size(0), width = x.size(1) * x.size(2);
  const auto sinks = std::clamp<std::int64_t>(recipe.sinks - input.first_position, 0, tokens);
  const std::span<float> values(x.mutable_data_ptr<float>(), static_cast<std::size_t>(tokens * width));
  const std::span<float> exact = values.first(static_cast<std::size_t>(sinks * width));
  const std::span<float> coded = values.subspan(exact.size());
  std::vector<std::uint32_t>& counts = layer.outliers[static_cast<std::size_t>(side)];
  counts.resize(static_cast<std::size_t>(input.first_position + tokens));
  const std::span<std::uint32_t> outliers = std::span(counts).last(static_cast<std::size_t>(tokens - sinks));
  std::int64_t token = input.first_position;  // of the first value in the call below that may throw
  try {
    encoder.round_exact(exact);
    token += sinks;
    encoder.round_trip(coded, threads_, outliers);
  } catch (const ExactOverflow& overflow) {
    fail_overflow(input.layer, side, token, static_cast<int>(x.size(2)), overflow);
  }
}

at::Tensor SimulatedCache::attend(const AttentionInput& input) {
  const c10::AutoGradMode no_graph(false);
  check_input(input, quantizer_->shape);
  Layer& layer = layers_[static_cast<std::size_t>(input.layer)];
  KVQ_ASSERT(layer.length == input.first_position);
  const auto private_copy = [](const at::Tensor& x) {
    return x.detach().to(at::TensorOptions().dtype(at::kFloat), false, true, at::MemoryFormat::Contiguous);
  };
  at::Tensor value = private_copy(input.value);
  at::Tensor key;
  const bool post_rope = quantizer_->recipe.key.post_rope;
  key = post_rope ? rope_.apply(input.key.detach().to(at::kFloat), input.first_position).contiguous()
                  : private_copy(input.key);
  if (quantizer_->recipe.quantized) {
    if (parts_.has(input.layer, Side::Key)) quantize(key, input, Side::Key);
    if (parts_.has(input.layer, Side::Value)) quantize(value, input, Side::Value);
  }
  if (!post_rope) key = rope_.apply(key, input.first_position);

  const auto dtype = input.query.scalar_type();
  layer.key.append(attention_operand(key.to(dtype), input.bf16), layer.length);
  layer.value.append(attention_operand(value.to(dtype), input.bf16), layer.length);
  layer.length += input.key.size(0);
  const at::Tensor query = attention_operand(rope_.apply(input.query, input.first_position), input.bf16);
  return causal_attention(query, layer.key.store.narrow(0, 0, layer.length),
                          layer.value.store.narrow(0, 0, layer.length), input.first_position)
      .to(dtype);
}

void SimulatedCache::reset() {
  for (Layer& layer : layers_) {
    layer.length = 0;
    layer.key = layer.value = {};
    for (std::vector<std::uint32_t>& counts : layer.outliers) counts.clear();
  }
}

std::int64_t SimulatedCache::tokens() const { return layers_.empty() ? 0 : layers_.back().length; }

Footprint SimulatedCache::footprint() const {
  KVQ_ASSERT(parts_.all());
  const std::int64_t length = tokens();
  std::vector<std::uint32_t> outliers[2];
  for (const Layer& layer : layers_) {
    KVQ_ASSERT(layer.length == length);  // asked between whole passes, when all layers have seen the same tokens
    for (const int side : {0, 1}) {
      outliers[side].insert(outliers[side].end(), layer.outliers[side].begin(), layer.outliers[side].end());
    }
  }
  return measured_footprint(*quantizer_, length, {outliers[0], outliers[1]});
}

}  // namespace kvq
