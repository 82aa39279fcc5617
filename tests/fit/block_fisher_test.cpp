// H, its factors, clipping, rotation and the codes that follow, against numpy: scripts/reference/block_fisher.py.
#include <kvq/fit/block_fisher.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/fit/data_view.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/recipe_words.h>

#include "fit/small_calibration.h"
#include "support/catch.h"

using namespace kvq;
using namespace kvq::test;

namespace {

const nlohmann::json& golden() {
  static const nlohmann::json document = [] {
    std::ifstream file(std::string(KVQ_SOURCE_DIR) + "/tests/golden/block_fisher.json");
    return nlohmann::json::parse(file);
  }();
  return document;
}

std::vector<float> small_tensor(Side side, bool gradient) {
  std::vector<float> values;
  for (int token = 0; token < kSmallSequences * kSmallSeqlen; ++token)
    for (int channel = 0; channel < kSmallShape.width(); ++channel)
      values.push_back(small_value(1, side, gradient, token, channel));
  return values;
}

template <class Number>
void check_close(const std::vector<Number>& ours, const std::vector<double>& theirs, double tolerance) {
  REQUIRE(ours.size() == theirs.size());
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    largest = std::max(largest, std::abs(theirs[i]));
    worst = std::max(worst, std::abs(ours[i] - theirs[i]));
  }
  CHECK(worst <= tolerance * largest);
}

}  // namespace

TEST_CASE("H of plain, clipped and rotated gradients is numpy's") {
  for (const nlohmann::json& entry : golden()["views"]) {
    const Side side = entry["side"] == "key" ? Side::Key : Side::Value;
    DataView view{false, entry["rotate"] ? Rotation::Hadamard : Rotation::None, entry["clip"], 1};
    CAPTURE(entry["side"].get<std::string>(), view.clip, static_cast<int>(view.rotation));
    const std::vector<float> x = small_tensor(side, false), gradients = small_tensor(side, true);
    RopeParams rope;
    for (const int threads : {1, 3}) {
      const ViewedData viewed =
          view_data(view, kSmallShape, rope, kSmallSequences, kSmallSeqlen, x, gradients, threads);
      const TokenSample sample{viewed.x, kSmallShape.width(), kSmallSequences, kSmallSeqlen, 1};
      check_close(gradient_blocks(sample, viewed.gradients, kSmallShape.head_dim, threads), entry["blocks"], 2e-6);
      if (!entry.contains("first_rows")) continue;
      const std::vector<double> rows = entry["first_rows"];
      check_close(std::vector<float>(viewed.x.begin(), viewed.x.begin() + static_cast<std::ptrdiff_t>(rows.size())),
                  rows, 1e-6);
    }
  }
}

TEST_CASE("Order, factor and pivots are LAPACK's") {
  for (const nlohmann::json& entry : golden()["factors"]) {
    const std::vector<double> block = entry["block"], scales = entry["scales"];
    const BlockFactor factor =
        factor_block(block, scales, *find_word(kOrderWords, entry["order"].get<std::string>()), entry["damp"]);
    CAPTURE(scales.size());
    CHECK_FALSE(factor.plain);
    CHECK(factor.order == entry["positions"].get<std::vector<std::int32_t>>());
    check_close(factor.hessian, entry["hessian"], 1e-13);
    check_close(factor.updates, entry["updates"], 1e-8);
    check_close(factor.pivots, entry["pivots"], 1e-8);
  }
}

TEST_CASE("Gradients that are all zero make plain rounding, and a singular H is refused") {
  const BlockFactor factor =
      factor_block(std::vector<double>(9), std::vector<double>{1, 3, 2}, CodingOrder::Energy, 0.01);
  CHECK(factor.plain);
  CHECK(factor.order == std::vector<std::int32_t>{1, 2, 0});
  CHECK(factor.updates == std::vector<double>(9));
  const std::vector<double> singular = {1, 1, 1, 1}, ones = {1, 1};
  CHECK_NOTHROW(factor_block(singular, ones, CodingOrder::Energy, 0.01));
  try {
    factor_block(singular, ones, CodingOrder::Energy, 0.0);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Numeric);
    CHECK_THAT(error.what(), ContainsSubstring("damp"));
  }
}

TEST_CASE("Codes and restored values with feedback and descent are numpy's") {
  for (const nlohmann::json& entry : golden()["encodings"]) {
    const int dim = entry["head_dim"], heads = 2;
    SideQuantizer quantizer;
    quantizer.recipe = parse_recipe("nuq2-4%").key;
    quantizer.recipe.rounding.feedback = entry["feedback"];
    quantizer.recipe.rounding.icm = entry["icm"];
    quantizer.kv_heads = heads, quantizer.head_dim = dim;
    quantizer.lower = entry["lower"].get<std::vector<float>>();
    quantizer.upper = entry["upper"].get<std::vector<float>>();
    for (const nlohmann::json& book : entry["books"]) quantizer.codebooks.push_back({book, book});
    if (entry["pair"]) {
      quantizer.recipe.widths = Widths::Pair;
      quantizer.widths = entry["widths"].get<std::vector<std::int32_t>>();
    }
    for (int head = 0; head < heads; ++head) {
      std::vector<double> scales;
      for (int channel = head * dim; channel < (head + 1) * dim; ++channel)
        scales.push_back(0.5 * quantizer.upper[channel] - 0.5 * quantizer.lower[channel]);
      const BlockFactor factor =
          factor_block(entry["blocks"][head].get<std::vector<double>>(), scales, CodingOrder::Energy, 0.01);
      FeedbackTables& tables = quantizer.feedback;
      tables.order.insert(tables.order.end(), factor.order.begin(), factor.order.end());
      tables.updates.insert(tables.updates.end(), factor.updates.begin(), factor.updates.end());
      tables.hessian.insert(tables.hessian.end(), factor.hessian.begin(), factor.hessian.end());
    }
    const std::vector<float> x = entry["x"];
    const SideEncoder encoder(quantizer);
    EncodedTokens encoded;
    encoder.encode(x, encoded);
    std::vector<float> restored(x.size());
    encoder.decode(encoded, restored);
    const int tokens = static_cast<int>(x.size()) / (heads * dim);
    CAPTURE(dim, quantizer.recipe.rounding.icm);
    int wrong_codes = 0;
    double worst = 0;
    for (int head = 0; head < heads; ++head) {
      for (int token = 0; token < tokens; ++token) {
        const std::vector<int> codes = entry["codes"][head * tokens + token];
        const std::vector<double> values = entry["restored"][head * tokens + token];
        for (int channel = 0; channel < dim; ++channel) {
          const int at = (token * heads + head) * dim + channel;
          wrong_codes += encoded.codes[at] != codes[channel];
          worst = std::max(worst, std::abs(restored[at] - values[channel]) / (1e-3 + std::abs(values[channel])));
        }
      }
    }
    CHECK(wrong_codes == 0);
    CHECK(worst < 1.1e-3);  // outliers are halves, whose last bit fp32 may tip
  }
}
