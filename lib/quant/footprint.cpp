#include <kvq/quant/footprint.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvq/core/error.h>
#include <kvq/quant/eviction_footprint.h>
#include <kvq/quant/page_footprint.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_shape.h>
#include <kvq/quant/tier_footprint.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/turbo_codec.h>
#include <kvq/vector/vector_sizes.h>

namespace kvq {

namespace {

constexpr std::int64_t kBlockLengthBytes = 4;

/// Tokens for which a side has slots in pages, sinks included as soon as one stands behind them.
std::int64_t paged_tokens(const Recipe& recipe, Side side, std::int64_t tokens) {
  if (codes_blocks(recipe.side(side))) return 0;  // those stand apart
  const ExactWindow window = exact_window(recipe, side);
  const std::int64_t settled = window.settled(tokens);
  return window.waits() && settled <= window.sinks ? 0 : settled;
}

/// The pages and exact tokens of one layer, without overflow blocks.
void add_layer(Footprint& sum, const LayerQuantizer& layer, const Recipe& recipe, std::int64_t tokens) {
  const layout::PageLayout page = page_layout(layer);
  const Footprint one = page_footprint(page);
  std::int64_t pages = 0;
  for (const Side which : kSides) {
    const layout::SideShape& side = which == Side::Key ? page.key : page.value;
    const ExactWindow window = exact_window(recipe, which);
    const std::int64_t paged = paged_tokens(recipe, which, tokens);
    pages = std::max(pages, layout::pages(paged));
    if (side.long_group_bytes() > 0) sum.ranges += layout::div_up(paged, side.group_tokens) * side.long_group_bytes();
    // Sinks, and room for what waits to be quantized, whether it is used or not.
    const std::int64_t exact = std::min<std::int64_t>(window.sinks, tokens) + window.room();
    sum.exact += exact * side.width() * layout::kHalfBytes;
  }
  sum.codes += pages * one.codes;
  sum.ranges += pages * one.ranges;
  sum.outliers += pages * one.outliers;
  sum.padding += pages * one.padding;
  sum.tables += pages * layout::kBlockTableBytes;
}

/// `count` blocks of `bytes` bytes, all kv heads: where sizes vary each head's length before them, padding, an entry of
/// the block table.
void add_blocks(Footprint& sum, const SideQuantizer& side, std::int64_t bytes, std::int64_t count) {
  const std::int64_t lengths = has_varying_blocks(side.recipe.vector) ? side.kv_heads * kBlockLengthBytes : 0;
  const std::int64_t whole = layout::div_up(bytes + lengths, layout::kPageAlignment) * layout::kPageAlignment;
  sum.codes += count * (bytes + lengths);
  sum.padding += count * (whole - bytes - lengths);
  sum.tables += count * layout::kBlockTableBytes;
}

/// The block that fills has room for the most that it can become; with lowrank= its tokens are exact until it is full.
void add_open_block(Footprint& sum, const SideQuantizer& side) {
  const VectorRecipe& codec = side.recipe.vector;
  if (!needs_whole_blocks(codec))
    add_blocks(sum, side, side.kv_heads * most_block_bytes(codec, side.head_dim, block_rows(codec)), 1);
}

void add_expected_blocks(Footprint& sum, const SideQuantizer& side, const ExactWindow& window, std::int64_t tokens) {
  const VectorRecipe& codec = side.recipe.vector;
  const std::int64_t rows = block_rows(codec), blocks = window.settled(tokens) / rows;
  const auto add = [&](std::int64_t rows_of_each, std::int64_t count) {
    if (rows_of_each == 0 || count <= 0) return;
    const std::int64_t bytes =
        has_varying_blocks(codec) && side.block_bytes > 0
            ? std::llround(side.block_bytes * static_cast<double>(rows_of_each) / static_cast<double>(rows))
            : side.kv_heads * most_block_bytes(codec, side.head_dim, rows_of_each);
    add_blocks(sum, side, bytes, count);
  };
  const std::int64_t with_sinks = std::min(layout::div_up(window.sinks, rows), blocks);
  for (std::int64_t block = 0; block < with_sinks; ++block) add(rows - std::min(window.sinks - block * rows, rows), 1);
  add(rows, blocks - with_sinks);
  add_open_block(sum, side);
}

/// `outliers_per_token`: of one layer and side.
void add_measured_overflow(Footprint& sum, const SideQuantizer& quantizer,
                           std::span<const std::uint32_t> outliers_per_token) {
  const layout::SideShape side = side_shape(quantizer);
  if (!side.varying_outliers) return;
  std::int64_t blocks = 0;
  for (std::size_t first = 0; first < outliers_per_token.size(); first += layout::kPageTokens) {
    const auto page = outliers_per_token.subspan(
        first, std::min<std::size_t>(layout::kPageTokens, outliers_per_token.size() - first));
    blocks +=
        layout::overflow_blocks(std::accumulate(page.begin(), page.end(), std::int64_t{0}), side.outlier_capacity);
  }
  sum.outliers += blocks * layout::overflow_block(side).bytes;
}

Footprint without_overflow(const Quantizer& quantizer, std::int64_t tokens) {
  Footprint sum;
  for (const LayerQuantizer& layer : quantizer.layers) add_layer(sum, layer, quantizer.recipe, tokens);
  return sum;
}

}  // namespace

Footprint page_footprint(const layout::PageLayout& page) {
  Footprint one;
  for (const layout::SideShape& side : {page.key, page.value}) {
    one.codes += side.code_bytes();
    one.ranges += side.range_bytes();
    one.outliers += layout::outlier_entry_bytes(side.head_dim, side.page_entries()) + side.count_bytes() +
                    (side.varying_outliers ? layout::kOverflowLinkBytes : 0) + side.page_group_outlier_bytes();
  }
  one.padding = page.bytes - one.total();
  return one;
}

double expected_overflow_blocks(double outlier_rate, int width, std::int64_t capacity, std::int64_t tokens) {
  const double mean = outlier_rate * width * static_cast<double>(tokens);
  if (mean <= 0.0) return 0.0;
  const auto last = std::min(static_cast<std::int64_t>(mean + 12.0 * std::sqrt(mean)) + 20, width * tokens);
  double blocks = 0.0;
  for (std::int64_t count = capacity + 1; count <= last; ++count) {
    const auto n = static_cast<double>(count);
    const double probability = std::exp(n * std::log(mean) - mean - std::lgamma(n + 1.0));
    blocks += probability * static_cast<double>(layout::overflow_blocks(count, capacity));
  }
  return blocks;
}

std::int64_t expected_overflow_bytes(double outlier_rate, const layout::SideShape& side, std::int64_t tokens) {
  if (!side.varying_outliers) return 0;
  const auto blocks_of = [&](std::int64_t page_tokens) {
    return expected_overflow_blocks(outlier_rate, side.width(), side.outlier_capacity, page_tokens);
  };
  const double blocks = blocks_of(layout::kPageTokens) * static_cast<double>(tokens / layout::kPageTokens) +
                        blocks_of(tokens % layout::kPageTokens);
  return static_cast<std::int64_t>(std::ceil(blocks)) * layout::overflow_block(side).bytes;
}

double Footprint::bits_per_value(const KvShape& shape, std::int64_t tokens) const {
  return 8.0 * static_cast<double>(total()) / (2.0 * shape.layers * shape.width() * static_cast<double>(tokens));
}

Footprint forecast_footprint(const Quantizer& quantizer, std::int64_t tokens) {
  if (quantizer.recipe.evicts()) return forecast_kept_footprint(quantizer, tokens);
  if (quantizer.recipe.tiered()) return forecast_tier_footprint(quantizer, tokens);
  if (!quantizer.recipe.quantized) return {.exact = fp16_bytes(quantizer.shape, tokens)};
  Footprint sum = without_overflow(quantizer, tokens);
  for (const LayerQuantizer& layer : quantizer.layers) {
    for (const Side side : kSides) {
      if (codes_blocks(layer.side(side).recipe))
        add_expected_blocks(sum, layer.side(side), exact_window(quantizer.recipe, side), tokens);
      sum.outliers += expected_overflow_bytes(layer.side(side).outlier_rate, side_shape(layer.side(side)),
                                              paged_tokens(quantizer.recipe, side, tokens));
    }
  }
  return sum;
}

Footprint measured_footprint(const Quantizer& quantizer, std::int64_t tokens, const OutliersPerToken& outliers,
                             std::span<const std::vector<std::int64_t>> closed_blocks) {
  KVQ_ASSERT(!quantizer.recipe.evicts() && !quantizer.recipe.tiered());
  if (!quantizer.recipe.quantized) return {.exact = fp16_bytes(quantizer.shape, tokens)};
  const auto length = static_cast<std::size_t>(tokens);
  KVQ_ASSERT(outliers.key.size() == quantizer.layers.size() * length && outliers.value.size() == outliers.key.size());
  Footprint sum = without_overflow(quantizer, tokens);
  for (std::size_t layer = 0; layer < quantizer.layers.size(); ++layer) {
    add_measured_overflow(sum, quantizer.layers[layer].key, outliers.key.subspan(layer * length, length));
    add_measured_overflow(sum, quantizer.layers[layer].value, outliers.value.subspan(layer * length, length));
    for (const Side which : kSides) {
      const SideQuantizer& side = quantizer.layers[layer].side(which);
      if (!codes_blocks(side.recipe)) continue;
      KVQ_ASSERT(closed_blocks.size() == 2 * quantizer.layers.size());
      for (const std::int64_t bytes : closed_blocks[2 * layer + static_cast<std::size_t>(which)])
        add_blocks(sum, side, bytes, 1);
      add_open_block(sum, side);
    }
  }
  return sum;
}

std::int64_t fp16_bytes(const KvShape& shape, std::int64_t tokens) {
  return 2 * tokens * shape.layers * shape.width() * layout::kHalfBytes;
}

double nominal_bits(const Recipe& recipe, int head_dim) {
  if (recipe.tiered()) return tier_nominal_bits(recipe.tiers, code_bits(recipe.key, head_dim));
  return recipe.quantized ? 0.5 * (code_bits(recipe.key, head_dim) + code_bits(recipe.value, head_dim)) : 16.0;
}

std::int64_t table_bytes(const Quantizer& quantizer) {
  std::int64_t numbers = 0, bytes = 0;
  for (const Side which : kSides) {  // one for all layers
    if (!quantizer.layers.empty() && quantizer.layers[0].side(which).turbo)
      numbers += quantizer.layers[0].side(which).turbo->numbers();
  }
  for (const LayerQuantizer& layer : quantizer.layers) {
    for (const Side which : kSides) {
      const SideQuantizer& side = layer.side(which);
      numbers += static_cast<std::int64_t>(side.lower.size() + side.upper.size()) + 1;  // 1: the exponent
      numbers += static_cast<std::int64_t>(side.widths.size() + side.rotation_scale.size() +
                                           side.feedback.order.size() + side.feedback.updates.size() +
                                           side.feedback.hessian.size() + side.outlier_channels.size());
      for (const std::vector<std::byte>& tables : side.vector_tables) bytes += static_cast<std::int64_t>(tables.size());
      const auto add_books = [&](const std::vector<Codebook>& codebooks) {
        for (const Codebook& codebook : codebooks) numbers += codebook.levels() * (side.recipe.qnorm ? 2 : 1);
      };
      add_books(side.codebooks);
      for (const LowerTier& tier : side.lower_tiers) add_books(tier.codebooks);
    }
  }
  return bytes + numbers * static_cast<std::int64_t>(sizeof(float));
}

}  // namespace kvq
