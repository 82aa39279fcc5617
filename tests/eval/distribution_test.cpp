#include "support/catch.h"
#include "support/fake_model.h"

#include <cmath>

#include <ATen/ops/matmul.h>

#include <kvq/eval/distribution.h>
#include <kvq/eval/perplexity.h>
#include <kvq/model/rope.h>

using namespace kvq;
using kvq::test::FakeModel;

namespace {

NamedQuantizer static_keys(const FakeModel& model, const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = model.config().kv;
  quantizer->rope = model.config().rope;
  for (int layer = 0; layer < quantizer->shape.layers; ++layer) {
    LayerQuantizer sides;
    for (const Side side : kSides) {
      SideQuantizer& part = sides.side(side);
      part = {.recipe = quantizer->recipe.side(side),
              .kv_heads = quantizer->shape.kv_heads,
              .head_dim = quantizer->shape.head_dim,
              .codebooks = {uniform_codebook(quantizer->recipe.side(side).bits)}};
      if (part.recipe.range == RangeKind::Static) {
        part.lower.assign(8, -0.4f);
        part.upper.assign(8, 0.8f);
        part.outlier_rate = 0.125;
      }
    }
    quantizer->layers.push_back(std::move(sides));
  }
  return {recipe, quantizer};
}

}  // namespace

TEST_CASE("The histogram of keys counts what a plain loop counts, sinks left out") {
  FakeModel model;
  std::vector<std::int32_t> ids;
  Rng rng(3);
  for (int token = 0; token < 600; ++token) ids.push_back(static_cast<std::int32_t>(rng.below(24)));
  const auto result = observe_distributions(model, ids, {static_keys(model, "int2-10%:sink=2")}, quiet_context());
  REQUIRE(result.size() == 1);
  REQUIRE(result[0].size() == 2);
  const auto& keys = result[0][0].sides[0];
  REQUIRE(keys.has_value());

  // Layer 0 reads the embeddings themselves; 512 tokens, the first two exact.
  const at::Tensor x = at::matmul(model.embed(ids), model.key_weight[0]).contiguous();
  std::vector<std::int64_t> counts(kDistributionBins, 0);
  std::int64_t outside = 0, beyond = 0;
  for (std::int64_t index = 2 * 8; index < 512 * 8; ++index) {
    const double value = x.const_data_ptr<float>()[index];
    const double place = (value - 0.2) / 0.6;
    outside += value < -0.4f || value > 0.8f ? 1 : 0;
    if (std::abs(place) >= 2) {
      ++beyond;
    } else {
      ++counts[static_cast<std::size_t>((place + 2) * 20)];
    }
  }
  CHECK(keys->below + keys->above == beyond);
  CHECK(keys->outlier_rate == Approx(static_cast<double>(outside) / (510 * 8)));
  CHECK(keys->calibrated_outlier_rate == 0.125);
  std::int64_t moved = 0;  // on the border of two bins fp32 and double may differ
  for (int bin = 0; bin < kDistributionBins; ++bin)
    moved += std::abs(counts[static_cast<std::size_t>(bin)] - keys->counts[static_cast<std::size_t>(bin)]);
  CHECK(moved <= 4);
  CHECK(keys->codebooks == std::vector<std::vector<float>>{uniform_codebook(2).centroids});

  // Values per token: nothing but outliers is beyond the token's own range, whose stored width may be rounded down.
  const auto& values = result[0][0].sides[1];
  REQUIRE(values.has_value());
  std::int64_t within = 0, all = values->below + values->above;
  for (int bin = 0; bin < kDistributionBins; ++bin) {
    all += values->counts[static_cast<std::size_t>(bin)];
    if (bin >= 19 && bin <= 60) within += values->counts[static_cast<std::size_t>(bin)];
  }
  CHECK(all == 510 * 8);
  CHECK(values->outlier_rate == 0.25);  // one at each end of eight
  CHECK(within >= 510 * 6);
}

TEST_CASE("Oracles, the unquantized cache and parts have no histograms") {
  FakeModel model;
  std::vector<std::int32_t> ids(40, 3);
  NamedQuantizer part = static_keys(model, "int2");
  part.parts.side = Side::Key;
  const auto result =
      observe_distributions(model, ids, {static_keys(model, "int2:range=window"), part}, quiet_context());
  CHECK_FALSE(result[0][0].sides[0].has_value());
  CHECK(result[1].empty());
}
