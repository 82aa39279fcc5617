#pragma once
// Quantizers of turbo, and of codecs of head vectors that are fitted to the very values that a test codes.

#include <memory>
#include <string>
#include <vector>

#include <kvq/core/rng.h>
#include <kvq/quant/quantizer.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/turbo_codec.h>
#include <kvq/vector/vector_recipe.h>

namespace kvq::test {

/// `[tokens, kv_heads, head_dim]`, neighbours alike, every head with a mean of its own.
inline std::vector<float> head_rows(std::int64_t tokens, const KvShape& shape, std::uint64_t seed) {
  Rng rng(seed);
  const auto width = static_cast<std::size_t>(shape.width());
  std::vector<float> x;
  for (std::size_t at = 0; at < static_cast<std::size_t>(tokens) * width; ++at) {
    const float fresh = static_cast<float>(rng.uniform() + rng.uniform() - 1);
    x.push_back(at < width ? fresh : 0.8f * x[at - width] + fresh);
  }
  for (std::size_t at = 0; at < x.size(); ++at)
    x[at] += 0.5f * static_cast<float>(at % width / static_cast<std::size_t>(shape.head_dim));
  return x;
}

/// Head vectors of one kv head, `[tokens, head_dim]`.
inline std::vector<float> rows_of_head(std::span<const float> x, const KvShape& shape, int kv_head) {
  std::vector<float> rows;
  const auto width = static_cast<std::size_t>(shape.width()), dim = static_cast<std::size_t>(shape.head_dim);
  for (std::size_t first = static_cast<std::size_t>(kv_head) * dim; first < x.size(); first += width)
    rows.insert(rows.end(), x.begin() + static_cast<std::ptrdiff_t>(first),
                x.begin() + static_cast<std::ptrdiff_t>(first + dim));
  return rows;
}

/// All layers alike. Codecs have tables fitted to the keys and values of `head_rows(400, shape, 1)` and `…, 2)`.
inline Quantizer codec_quantizer(const std::string& recipe, const KvShape& shape) {
  Quantizer quantizer;
  quantizer.recipe = parse_recipe(recipe);
  quantizer.shape = shape;
  quantizer.rope.rotary_dim = shape.head_dim;
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = quantizer.recipe.side(which);
    side.kv_heads = shape.kv_heads, side.head_dim = shape.head_dim;
    if (side.recipe.codebook == CodebookKind::Turbo) {
      const TurboOptions& options = side.recipe.turbo;
      side.turbo = std::make_shared<const TurboTables>(make_turbo_tables(options, side.recipe.bits, shape.head_dim));
      for (int head = 0; head < shape.kv_heads; ++head) {
        for (int channel = 0; channel < options.outlier_channels; ++channel)
          side.outlier_channels.push_back(2 * channel + head % 2);
      }
    }
    if (side.recipe.codebook != CodebookKind::Vector) continue;
    const std::vector<float> x = head_rows(400, shape, which == Side::Key ? 1 : 2);
    const int codecs = codec_count(side.recipe, shape.kv_heads);
    for (int codec = 0; codec < codecs; ++codec) {
      VectorSample sample;
      const std::vector<float> rows = codecs == 1 ? x : rows_of_head(x, shape, codec);
      sample.x = rows;
      side.vector_tables.push_back(train_vector_tables(side.recipe.vector, shape.head_dim, sample));
    }
  }
  quantizer.layers.assign(static_cast<std::size_t>(shape.layers), layer);
  return quantizer;
}

}  // namespace kvq::test
