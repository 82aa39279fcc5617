// The layout of pages, pinned: scripts/reference/packed_pages.py made tests/golden/packed_pages.json from FORMAT.md
// alone.
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "support/catch.h"

#include <kvq/cache/packed_sequence.h>
#include <kvq/quant/recipe_traits.h>

using namespace kvq;

namespace {

constexpr int kHeads = 2, kHeadDim = 4, kWidth = 8, kTokens = 20;

std::vector<float> tensor(int side) {
  std::vector<float> x;
  for (int t = 0; t < kTokens; ++t) {
    for (int c = 0; c < kWidth; ++c) {
      const int h = (t * 7919 + c * 104729 + side * 1299709 + t * t * 31 + c * c * 17) % 1009;
      const float value = static_cast<float>(h % 33 - 16) / 16.0f;
      x.push_back(h % 3 == 0 ? 2.0f * value : value);
    }
  }
  return x;
}

std::shared_ptr<Quantizer> make_quantizer(const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = {1, kHeads, kHeads, kHeadDim};
  quantizer->rope.rotary_dim = kHeadDim;
  LayerQuantizer layer;
  for (const Side which : kSides) {
    SideQuantizer& side = layer.side(which);
    side.recipe = quantizer->recipe.side(which);
    side.kv_heads = kHeads, side.head_dim = kHeadDim;
    side.exponent = -1;
    const auto add_book = [&](int levels) {
      Codebook book;
      for (int level = 0; level < levels; ++level)
        book.centroids.push_back(levels == 1 ? 0.0f : static_cast<float>(-1.0 + 2.0 * level / (levels - 1)));
      book.decoded = book.centroids;
      side.codebooks.push_back(book);
    };
    if (side.recipe.widths == Widths::Pair) {
      for (const int bits : width_choices(side.recipe)) add_book(1 << bits);
      side.widths = {0, 3, 0, 3, 2, 1, 2, 1};
    } else {
      add_book(code_levels(side.recipe));
    }
    if (side.recipe.rotation != Rotation::None) side.rotation_scale.assign(kWidth, 1.0f);
    if (!stores_thresholds(side.recipe)) continue;
    for (int channel = 0; channel < kWidth; ++channel) {
      side.lower.push_back(-1.0f - static_cast<float>(channel) / 16.0f);
      side.upper.push_back(1.0f + static_cast<float>(channel) / 32.0f);
    }
    side.outlier_rate = 0.01;  // of 512 values: room for 8
  }
  quantizer->layers = {layer};
  return quantizer;
}

std::vector<std::string> hex_lines(const std::vector<std::uint8_t>& bytes) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (at % 32 == 0) lines.emplace_back();
    lines.back() += fmt::format("{:02x}", bytes[at]);
  }
  return lines;
}

}  // namespace

TEST_CASE("Packed bytes are those of an independent program that knows only the published format") {
  std::ifstream file(std::string(KVQ_SOURCE_DIR) + "/tests/golden/packed_pages.json");
  const auto golden = nlohmann::json::parse(file);
  CHECK(golden.size() == 5);
  for (const auto& [recipe, expected] : golden.items()) {
    INFO(recipe);
    const auto pool = std::make_shared<PackedPool>(make_quantizer(recipe));
    CHECK(pool->layer(0).page.bytes == expected["page_bytes"].get<std::int64_t>());
    PackedSequence sequence(pool);
    sequence.append(0, tensor(0), tensor(1), 1);
    sequence.release(0);
    if (pool->layer(0).page.key.varying_outliers || pool->layer(0).page.value.varying_outliers)
      CHECK(pool->overflow().taken() > 0);
    CHECK(hex_lines(sequence.content(0)) == expected["content"].get<std::vector<std::string>>());
  }
}
