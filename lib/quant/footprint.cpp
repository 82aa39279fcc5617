#include <kvq/quant/footprint.h>

#include <algorithm>
#include <cmath>

#include <kvq/core/error.h>
#include <kvq/kernels/layout/packed_layout.h>
#include <kvq/quant/encoder.h>

namespace kvq {

namespace {

bool has_varying_outliers(const SideQuantizer& side) {
  return side.recipe.axis == Axis::Channel && side.recipe.outliers > 0.0;
}

std::int64_t page_capacity(const SideQuantizer& side) {
  return layout::outlier_page_capacity(side.outlier_rate, side.width());
}

/// Expected overflow blocks of a page of `tokens` tokens when every value is an outlier by itself with the calibrated
/// rate: the count is Poisson. Summed over all counts within 12 standard deviations.
double expected_overflow_blocks(const SideQuantizer& side, std::int64_t tokens) {
  const double mean = side.outlier_rate * side.width() * static_cast<double>(tokens);
  if (mean <= 0.0) return 0.0;
  const std::int64_t capacity = page_capacity(side);
  const auto last = std::min(static_cast<std::int64_t>(mean + 12.0 * std::sqrt(mean)) + 20, side.width() * tokens);
  double blocks = 0.0;
  for (std::int64_t count = capacity + 1; count <= last; ++count) {
    const auto n = static_cast<double>(count);
    const double probability = std::exp(n * std::log(mean) - mean - std::lgamma(n + 1.0));
    blocks += probability * static_cast<double>(layout::overflow_blocks(count, capacity));
  }
  return blocks;
}

/// All of one layer and side except overflow blocks.
void add_side(Footprint& sum, const SideQuantizer& side, std::int64_t tokens, int sinks) {
  const std::int64_t pages = layout::pages(tokens);
  const int width = side.width();
  sum.codes += pages * side.kv_heads * layout::code_page_bytes(side.head_dim, side.recipe.bits);
  if (side.recipe.axis == Axis::Token) {
    sum.ranges += pages * layout::range_page_bytes();
    sum.outliers += pages * layout::token_outlier_page_bytes(width, outliers_per_end(side.recipe.outliers, width));
  } else if (has_varying_outliers(side)) {
    sum.outliers += pages * layout::channel_outlier_page_bytes(side.kv_heads, side.head_dim, page_capacity(side));
  }
  sum.exact += std::min<std::int64_t>(sinks, tokens) * width * layout::kHalfBytes;
}

void add_expected_overflow(Footprint& sum, const SideQuantizer& side, std::int64_t tokens) {
  if (!has_varying_outliers(side)) return;
  const double whole_page = expected_overflow_blocks(side, layout::kPageTokens);
  const double last_page = expected_overflow_blocks(side, tokens % layout::kPageTokens);
  const double blocks = whole_page * static_cast<double>(tokens / layout::kPageTokens) + last_page;
  sum.outliers += static_cast<std::int64_t>(std::ceil(blocks)) * layout::overflow_block_bytes(side.head_dim);
}

Footprint without_overflow(const Quantizer& quantizer, std::int64_t tokens) {
  Footprint sum;
  for (const LayerQuantizer& layer : quantizer.layers) {
    for (const Side side : kSides) add_side(sum, layer.side(side), tokens, quantizer.recipe.sinks);
    sum.tables += layout::pages(tokens) * layout::kBlockTableBytes;
  }
  return sum;
}

}  // namespace

double Footprint::bits_per_value(const KvShape& shape, std::int64_t tokens) const {
  return 8.0 * static_cast<double>(total()) / (2.0 * shape.layers * shape.width() * static_cast<double>(tokens));
}

Footprint forecast_footprint(const Quantizer& quantizer, std::int64_t tokens) {
  if (!quantizer.recipe.quantized) return {.exact = fp16_bytes(quantizer.shape, tokens)};
  Footprint sum = without_overflow(quantizer, tokens);
  for (const LayerQuantizer& layer : quantizer.layers) {
    for (const Side side : kSides) add_expected_overflow(sum, layer.side(side), tokens);
  }
  return sum;
}

Footprint measured_footprint(const Quantizer& quantizer, std::int64_t tokens,
                             std::span<const std::uint32_t> key_outliers_per_token) {
  if (!quantizer.recipe.quantized) return {.exact = fp16_bytes(quantizer.shape, tokens)};
  KVQ_ASSERT(static_cast<std::int64_t>(key_outliers_per_token.size()) ==
             static_cast<std::int64_t>(quantizer.layers.size()) * tokens);
  Footprint sum = without_overflow(quantizer, tokens);
  auto layer_counts = key_outliers_per_token.begin();
  for (const LayerQuantizer& layer : quantizer.layers) {
    add_expected_overflow(sum, layer.value, tokens);
    if (has_varying_outliers(layer.key)) {
      const std::int64_t capacity = page_capacity(layer.key);
      for (std::int64_t first = 0; first < tokens; first += layout::kPageTokens) {
        std::int64_t outliers = 0;
        for (std::int64_t token = first; token < std::min(tokens, first + layout::kPageTokens); ++token) {
          outliers += layer_counts[token];
        }
        sum.outliers += layout::overflow_blocks(outliers, capacity) * layout::overflow_block_bytes(layer.key.head_dim);
      }
    }
    layer_counts += tokens;
  }
  return sum;
}

std::int64_t fp16_bytes(const KvShape& shape, std::int64_t tokens) {
  return 2 * tokens * shape.layers * shape.width() * layout::kHalfBytes;
}

double nominal_bits(const Recipe& recipe) {
  return recipe.quantized ? 0.5 * (recipe.key.bits + recipe.value.bits) : 16.0;
}

std::int64_t table_bytes(const Quantizer& quantizer) {
  std::int64_t numbers = 0;
  for (const LayerQuantizer& layer : quantizer.layers) {
    for (const Side which : kSides) {
      const SideQuantizer& side = layer.side(which);
      numbers += static_cast<std::int64_t>(side.lower.size() + side.upper.size()) + 1;  // 1: the exponent
      for (const Codebook& codebook : side.codebooks) numbers += codebook.levels() * (side.recipe.qnorm ? 2 : 1);
    }
  }
  return numbers * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace kvq
