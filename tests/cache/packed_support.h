#pragma once
// Random quantizers of any recipe and shape, and random keys and values with everything awkward in them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <kvq/cache/packed_attention.h>
#include <kvq/cache/packed_sequence.h>
#include <kvq/core/rng.h>
#include <kvq/kernels/reference/attention_reference.h>
#include <kvq/kernels/reference/page_reference.h>
#include <kvq/model/attention_backend.h>
#include <kvq/quant/quantizer.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_shape.h>

namespace kvq::test {

inline Codebook random_codebook(const SideRecipe& recipe, int levels, Rng& rng) {
  if (recipe.codebook == CodebookKind::Int) return uniform_codebook(recipe.bits);
  if (recipe.codebook == CodebookKind::Nf) return normal_float_codebook(recipe.bits);
  Codebook book;
  for (int level = 0; level < levels; ++level) {
    book.centroids.push_back(static_cast<float>(2.0 * rng.uniform() - 1.0));
  }
  std::sort(book.centroids.begin(), book.centroids.end());
  for (const float centroid : book.centroids) {
    book.decoded.push_back(recipe.qnorm ? 1.1f * centroid - 0.03f : centroid);
  }
  return book;
}

/// Made-up tables of feedback: channels in reverse, each error passed on in small parts.
inline void add_feedback(SideQuantizer& side) {
  const int dim = side.head_dim;
  for (int row = 0; row < side.width(); ++row) {
    side.feedback.order.push_back(dim - 1 - row % dim);
    for (int column = 0; column < dim; ++column) {
      side.feedback.updates.push_back(column > row % dim ? 0.2f / static_cast<float>(column) : 0.0f);
      side.feedback.hessian.push_back(column == row % dim ? 1.25f : 0.25f);
    }
  }
}

/// widths=pair: codebooks of every width, and random widths of the recipe's total, the same for both channels of a
/// pair.
inline void add_widths(SideQuantizer& side, Rng& rng) {
  const std::vector<int> choices = width_choices(side.recipe);
  for (const int bits : choices) side.codebooks.push_back(random_codebook(side.recipe, 1 << bits, rng));
  const int pairs = side.head_dim / 2;
  for (int head = 0; head < side.kv_heads; ++head) {
    std::vector<int> bits;
    for (int pair = 0; pair < pairs; ++pair) bits.push_back(side.recipe.bits + (side.recipe.half_bit ? pair % 2 : 0));
    for (int step = 0; step < 4 * pairs; ++step) {
      int& more = bits[rng.below(static_cast<std::uint64_t>(pairs))];
      int& less = bits[rng.below(static_cast<std::uint64_t>(pairs))];
      if (more < choices.back() && less > choices.front()) ++more, --less;
    }
    for (int channel = 0; channel < side.head_dim; ++channel)
      side.widths.push_back(bits[static_cast<std::size_t>(channel % pairs)]);
  }
}

/// Thresholds that leave about `rate` of the values of random_values outside; one channel in 8 is constant.
inline std::shared_ptr<Quantizer> random_quantizer(const std::string& recipe, const KvShape& shape, std::uint64_t seed,
                                                   double rate = 0.02) {
  Rng rng(seed);
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = shape;
  quantizer->rope.rotary_dim = shape.head_dim / 2 * 2;
  for (int layer = 0; layer < shape.layers; ++layer) {
    LayerQuantizer parts;
    for (const Side which : kSides) {
      SideQuantizer& side = parts.side(which);
      side.recipe = quantizer->recipe.side(which);
      side.kv_heads = shape.kv_heads, side.head_dim = shape.head_dim;
      side.exponent = layer % 2 == 0 ? 0 : -2;
      for (int book = 0; book < (side.recipe.share == Share::Head ? shape.kv_heads : 1); ++book) {
        if (side.recipe.widths == Widths::Flat)
          side.codebooks.push_back(random_codebook(side.recipe, code_levels(side.recipe), rng));
      }
      if (side.recipe.widths == Widths::Pair) add_widths(side, rng);
      for (int channel = 0; channel < side.width() && side.recipe.rotation != Rotation::None; ++channel)
        side.rotation_scale.push_back(static_cast<float>(0.5 + rng.uniform()));
      if (stores_thresholds(side.recipe)) {
        for (int channel = 0; channel < side.width(); ++channel) {
          const auto bound = static_cast<float>(1.0 - rate);
          const bool constant = channel % 8 == 5;
          side.lower.push_back(constant ? 0.25f : -bound);
          side.upper.push_back(constant ? 0.25f : bound);
        }
        side.outlier_rate = side.recipe.outliers > 0.0 ? 0.8 * rate : 0.0;  // less than there are: blocks overflow
      }
      if (side.recipe.rounding.uses_blocks()) add_feedback(side);
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

/// `[tokens, heads, head_dim]` in [-1, 1]; with `awkward`, channel 5 of 8 is 0.25 and a token now and then is three
/// times as large.
inline at::Tensor random_values(std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, Rng& rng,
                                bool awkward = true) {
  at::Tensor x = at::empty({tokens, heads, head_dim}, at::TensorOptions().dtype(at::kFloat));
  float* data = x.mutable_data_ptr<float>();
  for (std::int64_t token = 0; token < tokens; ++token) {
    const double size = awkward && rng.below(40) == 0 ? 3.0 : 1.0;
    for (std::int64_t channel = 0; channel < heads * head_dim; ++channel) {
      const auto value = static_cast<float>(size * (2.0 * rng.uniform() - 1.0));
      *data++ = awkward && channel % 8 == 5 && size == 1.0 ? 0.25f : value;
    }
  }
  return x;
}

/// One layer's input of a whole window.
inline AttentionInput random_input(const KvShape& shape, int layer, std::int64_t tokens, Rng& rng) {
  return {layer, 0, random_values(tokens, shape.heads, shape.head_dim, rng, false),
          random_values(tokens, shape.kv_heads, shape.head_dim, rng),
          random_values(tokens, shape.kv_heads, shape.head_dim, rng)};
}

inline AttentionInput part_of(const AttentionInput& whole, std::int64_t first, std::int64_t count) {
  return {whole.layer, first, whole.query.narrow(0, first, count), whole.key.narrow(0, first, count),
          whole.value.narrow(0, first, count)};
}

inline std::span<const float> numbers(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), static_cast<std::size_t>(x.numel())};
}
inline std::vector<double> doubles(const at::Tensor& x) {
  const std::span<const float> from = numbers(x);
  return {from.begin(), from.end()};
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = a.size() == b.size() ? 0.0 : HUGE_VAL;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

/// What the reference must know of a side.
inline reference::Side reference_side(const LayerQuantizer& layer, Side which) {
  const SideQuantizer& side = layer.side(which);
  const layout::PageLayout page = page_layout(layer);
  reference::Side result;
  result.shape = which == Side::Key ? page.key : page.value;
  result.parts = which == Side::Key ? page.key_parts : page.value_parts;
  result.exponent = side.exponent;
  result.range_channels = group_channels(side.recipe, side.width());
  for (std::size_t channel = 0; channel < side.lower.size(); ++channel) {
    result.zero.push_back(0.5 * side.lower[channel] + 0.5 * side.upper[channel]);
    result.scale.push_back(0.5 * side.upper[channel] - 0.5 * side.lower[channel]);
  }
  result.levels = side.recipe.levels;
  result.widths.assign(side.widths.begin(), side.widths.end());
  result.rotation_scale.assign(side.rotation_scale.begin(), side.rotation_scale.end());
  for (const Codebook& book : side.codebooks) {
    if (!side.widths.empty()) {
      int bits = 0;
      while (1 << bits < book.levels()) ++bits;
      result.decoded_by_width[bits].assign(book.decoded.begin(), book.decoded.end());
    }
    result.decoded.insert(result.decoded.end(), book.decoded.begin(), book.decoded.end());
  }
  return result;
}

/// What the reference reads from the bytes of a sequence: `[tokens, kv_heads, head_dim]`.
inline std::vector<double> reference_decode(const PackedSequence& sequence, int layer, Side which) {
  const std::int64_t settled = sequence.settled(layer, which);
  std::vector<const std::uint8_t*> pages;
  for (std::int64_t page = 0; page < layout::pages(settled); ++page) pages.push_back(sequence.page(layer, page));
  const reference::Side side =
      reference_side(sequence.pool().quantizer().layers[static_cast<std::size_t>(layer)], which);
  std::vector<double> x = reference::decode_pages(
      pages, side, settled, sequence.sinks(layer, which),
      [&](std::uint32_t block) { return static_cast<const std::uint8_t*>(sequence.pool().overflow().data(block)); });
  const PackedSequence::Waiting waiting = sequence.waiting(layer, which);
  if (waiting.exact.empty()) return x;
  const auto passed = static_cast<std::size_t>((settled - waiting.first) * side.shape.width());
  for (const std::uint16_t half : waiting.exact.subspan(passed))
    x.push_back(std::ldexp(reference::half_value(half), side.exponent));
  return x;
}

/// To the last queries of a sequence, on one thread.
inline std::vector<float> answer(const PackedSequence& sequence, int layer, const at::Tensor& query) {
  std::vector<float> out(static_cast<std::size_t>(query.numel()));
  PackedAttention(1).attend(sequence, layer, numbers(query), out);
  return out;
}

/// A bit string's number, the lowest bit first.
inline int code_at(const std::uint8_t* bytes, std::int64_t first, int bits) {
  int code = 0;
  for (int bit = bits - 1; bit >= 0; --bit) code = 2 * code + (bytes[(first + bit) / 8] >> ((first + bit) % 8) & 1);
  return code;
}

/// Recipes that between them have every field that a cache must mind.
inline const std::vector<std::string>& many_recipes() {
  static const std::vector<std::string> recipes = {"nuq1",
                                                   "nuq2-2%:share=head",
                                                   "nuq3-2%:qnorm,sink=4",
                                                   "nuq4-2%",
                                                   "int5-2%:sink=16",
                                                   "nf6",
                                                   "nuq7-2%:sink=0",
                                                   "int8-2%",
                                                   "int4:key=token,sink=0",
                                                   "nuq3-2%:key=token",
                                                   "int4-2%:rope=post,sink=3",
                                                   "K=nuq3-2%:cap=4%/V=nuq2-2%:share=head",
                                                   "K=nuq5-2%/V=nuq1",
                                                   "nuq2-2%:feedback,icm=2",
                                                   "K=nuq2/V=nuq6-2%",
                                                   "int3-2%:value=channel,sink=2",
                                                   "int2-40%",
                                                   "kvq2",
                                                   "kvq1.5:sink=2",
                                                   "kvq3:icm=1",
                                                   "kvq4",
                                                   "K=nuq3-2%:widths=pair/V=nuq2-2%",
                                                   "K=nuq2:widths=pair,sink=5/V=nuq1:levels=3",
                                                   "nuq2-2%:levels=5,share=head",
                                                   "nuq3-2%:levels=10,qnorm,sink=0",
                                                   "nuq4:levels=20,value=channel",
                                                   "nuq3-2%:rotate=hadamard,sink=3",
                                                   "K=nuq4/V=nf4:rotate=hadamard"};
  return recipes;
}

/// The same for recipes whose tokens wait, or that have more than one range per token.
inline const std::vector<std::string>& grouped_recipes() {
  static const std::vector<std::string> recipes = {
      "kivi2:group=8,recent=32",
      "kivi4:group=16,recent=16",
      "atom4:group=16",
      "atom3:group=32",
      "flexgen4:group=24",
      "nuq3-2%:recent=8",
      "kvq2:recent=16,sink=3",
      "kvq2:flush=5",
      "K=nuq2-2%:recent=64/V=nuq2:value=token-group,group=20",
      "K=int3:key=channel-group,group=64,recent=5/V=int4",
      "K=int2:key=channel-group,group=2,sink=4/V=nf4-2%:recent=3,flush=7",
      "K=nuq3-4%:key=channel-group,group=32,rule=threshold,sink=2/V=nuq2-2%",
      "int4:zero=integer,key=token",
      "nuq3-2%:rule=topk",
      "K=nuq2-2%/V=nuq3-2%:rule=threshold,recent=20"};
  return recipes;
}

/// Appends a window in parts of the given sizes, all layers in turn; the results of the last layer.
inline at::Tensor run(AttentionBackend& cache, const std::vector<AttentionInput>& window,
                      const std::vector<std::int64_t>& parts) {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  for (const std::int64_t count : parts) {
    for (const AttentionInput& layer : window) {
      const at::Tensor result = cache.attend(part_of(layer, first, count));
      if (&layer == &window.back()) results.push_back(result);
    }
    first += count;
  }
  return at::cat(results, 0);
}

/// The input of every layer.
inline std::vector<AttentionInput> random_window(const KvShape& shape, std::int64_t tokens, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<AttentionInput> window;
  for (int layer = 0; layer < shape.layers; ++layer) window.push_back(random_input(shape, layer, tokens, rng));
  return window;
}

/// Calls of `size` tokens, the last one of what is left.
inline std::vector<std::int64_t> equal_parts(std::int64_t tokens, std::int64_t size) {
  std::vector<std::int64_t> parts(static_cast<std::size_t>(tokens / size), size);
  if (tokens % size != 0) parts.push_back(tokens % size);
  return parts;
}

}  // namespace kvq::test
