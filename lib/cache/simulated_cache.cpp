#include <kvq/cache/simulated_cache.h>

#include <algorithm>
#include <span>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/cache/cache_checks.h>
#include <kvq/cache/eviction.h>
#include <kvq/cache/grown_tokens.h>
#include <kvq/cache/layer_tiers.h>
#include <kvq/cache/settling_attention.h>
#include <kvq/core/error.h>
#include <kvq/model/device.h>
#include <kvq/model/linear.h>
#include <kvq/quant/vector_side.h>

namespace kvq {

namespace {

std::span<float> writable_numbers(const at::Tensor& x) {
  return {x.mutable_data_ptr<float>(), static_cast<std::size_t>(x.numel())};
}

at::Tensor join(const at::Tensor& a, const at::Tensor& b) { return a.defined() ? at::cat({a, b}, 0) : b; }

/// What stands before token `count` is dropped; a copy, so that the memory goes with it.
at::Tensor without_first(const at::Tensor& x, std::int64_t count) {
  return x.narrow(0, count, x.size(0) - count).clone();
}

}  // namespace

/// Keys or values of one layer.
struct SimulatedCache::Tokens {
  GrownTokens settled;  ///< as they stay
  at::Tensor waiting;   ///< fp32, before RoPE if that is where they are quantized: tokens that are still exact
  at::Tensor exact;     ///< the same as attention takes them
  /// Exact values per token, 0 for sinks and what is not settled; with eviction `[tokens, kept_lists()]`.
  std::vector<std::uint32_t> outliers;
  std::unique_ptr<VectorBlocks> blocks;  ///< where tokens are coded together; made for the first
};

struct SimulatedCache::Layer {
  std::vector<SideSimulator> simulators;    ///< by Side; none for an unquantized recipe
  std::int64_t length = 0;                  ///< tokens so far
  Tokens tokens[2];                         ///< by Side
  std::unique_ptr<LayerEviction> eviction;  ///< null: all tokens are kept
  std::unique_ptr<LayerTiers> tiers;        ///< null: all tokens have the same bits
};

SimulatedCache::SimulatedCache(std::shared_ptr<const Quantizer> quantizer, int threads, CacheParts parts)
    : quantizer_(std::move(quantizer)), threads_(threads), parts_(std::move(parts)), tables_(quantizer_->rope) {
  for (const int layer : parts_.layers) {
    if (layer < 0 || layer >= quantizer_->shape.layers) {
      fail(ErrorKind::Usage, fmt::format("layer {} cannot be quantized by itself: the model has layers 0 to {}", layer,
                                         quantizer_->shape.layers - 1));
    }
  }
  layers_.resize(static_cast<std::size_t>(quantizer_->shape.layers));
  const Recipe& recipe = quantizer_->recipe;
  validate_eviction(recipe.eviction);
  if ((recipe.evicts() || recipe.tiered()) && parts_.side) {
    fail(ErrorKind::Usage, fmt::format("recipe '{}' {} keys and values together: one side of it is no cache",
                                       short_form(recipe), recipe.evicts() ? "evicts" : "chooses tiers for"));
  }
  check_local_layers(recipe, quantizer_->rope);
  for (std::size_t layer = 0; layer < layers_.size() && recipe.evicts(); ++layer) {
    if (parts_.has(static_cast<int>(layer), Side::Key))
      layers_[layer].eviction =
          make_eviction(*quantizer_, static_cast<int>(layer), threads_, tables_.of(static_cast<int>(layer)), prompt_);
  }
  if (!recipe.quantized) return;
  check_shape(quantizer_->recipe, quantizer_->shape.kv_heads, quantizer_->shape.head_dim);
  if (quantizer_->layers.size() != layers_.size()) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has {} layers, but its shape says {}", quantizer_->layers.size(), layers_.size()));
  }
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    for (const Side side : kSides) layers_[layer].simulators.emplace_back(quantizer_->layers[layer].side(side));
    const int number = static_cast<int>(layer);
    if (recipe.tiered() && parts_.has(number, Side::Key))
      layers_[layer].tiers = std::make_unique<LayerTiers>(*quantizer_, number, threads_, tables_.of(number));
  }
}

SimulatedCache::~SimulatedCache() = default;

ExactWindow SimulatedCache::window_of(int layer, Side side) const {
  return quantizer_->recipe.quantized && parts_.has(layer, side) ? exact_window(quantizer_->recipe, side)
                                                                 : ExactWindow{};
}

/// Takes tokens `first` … as they come, the first `sinks` of them to stay exact, into the settled ones. `x`, contiguous
/// fp32 `[tokens, kv_heads, head_dim]`, is overwritten. `rounded`: it has been through round_exact().
void SimulatedCache::settle(Tokens& tokens, const at::Tensor& x, int layer, Side side, std::int64_t first,
                            std::int64_t sinks, bool rounded) {
  if (x.size(0) == 0) return;
  const SideSimulator& simulator = layers_[static_cast<std::size_t>(layer)].simulators[static_cast<std::size_t>(side)];
  const std::span<float> values = writable_numbers(x);
  const std::span<float> exact = values.first(static_cast<std::size_t>(sinks * x.size(1) * x.size(2)));
  const std::int64_t lists = kept_lists(*quantizer_);
  const std::span<std::uint32_t> outliers = std::span(tokens.outliers)
                                                .subspan(static_cast<std::size_t>((first + sinks) * lists),
                                                         static_cast<std::size_t>((x.size(0) - sinks) * lists));
  std::int64_t token = first;  // of the first value in the call below that may throw
  try {
    if (!rounded) simulator.round_exact(exact);
    token += sinks;
    if (!tokens.blocks) tokens.blocks = simulator.start();
    simulator.round_trip(values.subspan(exact.size()), token, threads_, outliers, tokens.blocks.get());
  } catch (const ExactOverflow& overflow) {
    fail_overflow(layer, side, token, static_cast<int>(x.size(2)), overflow);
  }
}

/// `x`, contiguous fp32 `[tokens, kv_heads, head_dim]`, is overwritten.
void SimulatedCache::append(const at::Tensor& x, const AttentionInput& input, Side side) {
  Layer& layer = layers_[static_cast<std::size_t>(input.layer)];
  Tokens& tokens = layer.tokens[static_cast<int>(side)];
  const Recipe& recipe = quantizer_->recipe;
  const auto dtype = input.query.scalar_type();
  const bool rotate_later = side == Side::Key && !recipe.key.post_rope;
  const c10::Device device = layer.eviction ? c10::Device(at::kCPU) : input.query.device();
  const auto attended = [&](const at::Tensor& settled, std::int64_t position) {
    const at::Tensor part = settled.to(device);
    const at::Tensor turned = rotate_later && part.size(0) > 0 ? tables_.of(input.layer).apply(part, position) : part;
    return attention_operand(turned.to(dtype), input.bf16);
  };
  if (!recipe.quantized || !parts_.has(input.layer, side))
    return tokens.settled.append(attended(x, input.first_position));
  if (recipe.side(side).range == RangeKind::Window && input.first_position != 0) {
    fail(ErrorKind::Usage,
         fmt::format("range=window takes the range of the whole window, but token {} comes in a later call: "
                     "such a recipe cannot continue a text",
                     input.first_position));
  }
  const std::int64_t length = input.first_position + x.size(0);
  tokens.outliers.resize(static_cast<std::size_t>(length * kept_lists(*quantizer_)));
  const ExactWindow window = window_of(input.layer, side);
  const std::int64_t first = tokens.settled.length, settled = window.settled(length);
  const std::int64_t sinks = std::clamp<std::int64_t>(window.sinks - first, 0, settled - first);
  if (!window.waits()) {
    settle(tokens, x, input.layer, side, first, sinks, false);
    return tokens.settled.append(attended(x, first));
  }
  const SideSimulator& simulator = layer.simulators[static_cast<std::size_t>(side)];
  try {
    simulator.round_exact(writable_numbers(x));
  } catch (const ExactOverflow& overflow) {
    fail_overflow(input.layer, side, input.first_position, static_cast<int>(x.size(2)), overflow);
  }
  tokens.waiting = join(tokens.waiting, x);
  tokens.exact = join(tokens.exact, attended(x, input.first_position));
  const at::Tensor leaving = tokens.waiting.narrow(0, 0, settled - first).clone();
  settle(tokens, leaving, input.layer, side, first, sinks, true);
  if (settled > first || first == 0) tokens.settled.append(attended(leaving, first));
  tokens.waiting = without_first(tokens.waiting, settled - first);
}

at::Tensor SimulatedCache::attend(const AttentionInput& input) {
  const c10::AutoGradMode no_graph(false);
  check_input(input, quantizer_->shape);
  Layer& layer = layers_[static_cast<std::size_t>(input.layer)];
  KVQ_ASSERT(layer.length == input.first_position);
  const auto private_copy = [](const at::Tensor& x) {
    return x.detach().to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat), false, true,
                         at::MemoryFormat::Contiguous);
  };
  const Recipe& recipe = quantizer_->recipe;
  RopeTable& table = tables_.of(input.layer);
  const std::int64_t seen_tokens = quantizer_->rope.window_of(input.layer);
  const at::Tensor key = recipe.key.post_rope ? table.apply(host_floats(input.key), input.first_position).contiguous()
                                              : private_copy(input.key);
  // Rules of eviction and tiers are loops of the CPU.
  const at::Tensor asked = layer.eviction || layer.tiers ? input.query.to(at::kCPU) : input.query;
  const at::Tensor query = attention_operand(table.apply(asked, input.first_position), input.bf16);
  const auto dtype = input.query.scalar_type();
  if (layer.tiers) {
    layer.length += input.key.size(0);
    return layer.tiers->attend({input.first_position, query, key, private_copy(input.value), input.bf16})
        .to(input.query.device(), dtype);
  }
  append(key, input, Side::Key);
  append(private_copy(input.value), input, Side::Value);
  layer.length += input.key.size(0);
  Tokens &keys = layer.tokens[0], &values = layer.tokens[1];
  if (layer.eviction) {
    return layer.eviction
        ->attend({input.first_position, query, asked, keys.settled.all(), values.settled.all(), input.bf16})
        .to(input.query.device(), dtype);
  }
  const ExactWindow windows[2] = {window_of(input.layer, Side::Key), window_of(input.layer, Side::Value)};
  if (!windows[0].waits() && !windows[1].waits())
    return causal_attention(query, keys.settled.all(), values.settled.all(), input.first_position, seen_tokens)
        .to(dtype);
  const auto seen = [&](Tokens& tokens, const ExactWindow& window) {
    SettlingTokens view{window, tokens.settled.all(), tokens.exact, 0};
    if (window.waits()) view.first_exact = layer.length - tokens.exact.size(0);
    return view;
  };
  at::Tensor result =
      settling_attention(query, seen(keys, windows[0]), seen(values, windows[1]), input.first_position, seen_tokens);
  for (Tokens* tokens : {&keys, &values}) {  // what is settled now is exact for no later query
    if (tokens->exact.defined())
      tokens->exact = without_first(tokens->exact, tokens->exact.size(0) - (layer.length - tokens->settled.length));
  }
  return result.to(dtype);
}

void SimulatedCache::reset() {
  for (Layer& layer : layers_) {
    layer.length = 0;
    if (layer.eviction) layer.eviction->reset();
    if (layer.tiers) layer.tiers->reset();
    for (Tokens& tokens : layer.tokens) tokens = {};
  }
}

KeptTokens SimulatedCache::kept(int layer) const {
  const Layer& one = layers_.at(static_cast<std::size_t>(layer));
  KVQ_ASSERT(one.eviction);
  return one.eviction->kept();
}

TierTokens SimulatedCache::tiers(int layer) const {
  const Layer& one = layers_.at(static_cast<std::size_t>(layer));
  KVQ_ASSERT(one.tiers);
  return one.tiers->tiers();
}

at::Tensor SimulatedCache::held(int layer, Side side) const {
  const Layer& one = layers_.at(static_cast<std::size_t>(layer));
  if (one.tiers) return one.tiers->held(side);
  const Tokens& tokens = one.tokens[static_cast<std::size_t>(side)];
  KVQ_ASSERT(tokens.settled.length == one.length);
  return tokens.settled.all();
}

std::int64_t SimulatedCache::tokens() const { return layers_.empty() ? 0 : layers_.back().length; }

Footprint SimulatedCache::footprint() const {
  KVQ_ASSERT(parts_.all());
  const std::int64_t length = tokens();
  const bool evicts = quantizer_->recipe.evicts(), tiered = quantizer_->recipe.tiered();
  std::vector<KeptTokens> kept;
  std::vector<TierTokens> tiers;
  std::vector<std::uint32_t> outliers[2];
  std::vector<std::vector<std::int64_t>> closed_blocks;
  for (const Layer& layer : layers_) {
    KVQ_ASSERT(layer.length == length);  // asked between whole passes, when all layers have seen the same tokens
    if (evicts) kept.push_back(layer.eviction->kept());
    if (tiered) tiers.push_back(layer.tiers->tiers());
    for (const Side which : kSides) {
      const auto side = static_cast<std::size_t>(which);
      const std::vector<std::uint32_t>& counts = tiered ? layer.tiers->outliers(which) : layer.tokens[side].outliers;
      outliers[side].insert(outliers[side].end(), counts.begin(), counts.end());
      const VectorBlocks* blocks = layer.tokens[side].blocks.get();
      closed_blocks.push_back(blocks ? blocks->closed_bytes() : std::vector<std::int64_t>());
    }
  }
  if (evicts) return kept_footprint(*quantizer_, length, kept, {outliers[0], outliers[1]});
  if (tiered) return tier_footprint(*quantizer_, length, tiers, {outliers[0], outliers[1]});
  return measured_footprint(*quantizer_, length, {outliers[0], outliers[1]}, closed_blocks);
}

}  // namespace kvq
