#include <kvq/fit/thresholds.h>

#include <fstream>

#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/fit/fit.h>

#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

using namespace kvq;
using namespace kvq::test;

namespace {

nlohmann::json expected() {
  std::ifstream file(std::string(KVQ_SOURCE_DIR) + "/tests/golden/fit_small.json");
  return nlohmann::json::parse(file);
}

}  // namespace

TEST_CASE("thresholds and outlier rates are numpy's") {
  TempDir folder;
  const std::filesystem::path path = folder.path() / "calib.h5";
  write_small_calibration(path);
  const CalibrationReader calibration(path);
  const ThresholdsFile file = extract_thresholds(calibration, {{0.03, 0.1, 0.0}, {1, 0}, 0.0}, quiet_context());
  REQUIRE(file.sets.size() == 6);
  const nlohmann::json wanted_sets = expected()["thresholds"];
  for (const nlohmann::json& entry : wanted_sets) {
    const ThresholdSet* set = file.find(entry["fraction"], entry["sinks"]);
    REQUIRE(set != nullptr);
    for (ThresholdTensor tensor : {ThresholdTensor::Key, ThresholdTensor::KeyPostRope, ThresholdTensor::Value}) {
      const ChannelThresholds& found = set->layers[1][static_cast<int>(tensor)];
      const nlohmann::json& wanted = entry[threshold_tensor_name(tensor)];
      CAPTURE(entry["fraction"].get<double>(), entry["sinks"].get<int>(), threshold_tensor_name(tensor));
      for (int channel = 0; channel < kSmallShape.width(); ++channel) {
        REQUIRE(found.lower[channel] == Approx(wanted["lower"][channel].get<double>()).epsilon(3e-7).margin(1e-7));
        REQUIRE(found.upper[channel] == Approx(wanted["upper"][channel].get<double>()).epsilon(3e-7).margin(1e-7));
      }
      REQUIRE(found.outlier_rate == Approx(wanted["rate"].get<double>()).margin(1e-12));
      REQUIRE(found.capped_outlier_rate == found.outlier_rate);
    }
  }
  // Fraction 0 is the range itself; values lose 1 of 8 at each end however small the fraction.
  const ChannelThresholds& widest = file.find(0.0, 0)->layers[0][0];
  REQUIRE(widest.lower == widest.minimum);
  REQUIRE(widest.upper == widest.maximum);
  REQUIRE(widest.online_outlier_rate == 0);
  REQUIRE(file.find(0.03, 0)->layers[0][2].online_outlier_rate == 0.25);
  REQUIRE(file.provenance.parents.at(0) == std::pair<std::string, std::string>("calibration", calibration.sha256()));
}

TEST_CASE("keys of a local layer are rotated by its own angles, for thresholds and for the fit") {
  TempDir folder;
  ModelRope rope(RopeParams{.theta = 77.0, .rotary_dim = kSmallShape.head_dim});
  rope.local = {.theta = 10000.0, .rotary_dim = kSmallShape.head_dim};
  rope.window = 5;
  rope.is_local = {0, 1};
  write_small_calibration(folder.path() / "usual.h5");
  write_small_calibration(folder.path() / "local.h5", nullptr, std::string(64, 'a'), "joint", {}, &rope);
  const CalibrationReader usual(folder.path() / "usual.h5"), local(folder.path() / "local.h5");
  CHECK(local.header().rope == rope);
  const ThresholdsFile a = extract_thresholds(usual, {{0.1}, {1}, 0.0}, quiet_context());
  const ThresholdsFile b = extract_thresholds(local, {{0.1}, {1}, 0.0}, quiet_context());
  RunContext context = quiet_context();
  const std::vector<Recipe> recipes = {parse_recipe("nuq2-10%:rope=post")};
  const Quantizer fit_a = fit_quantizers(usual, &a, recipes, context)[0],
                  fit_b = fit_quantizers(local, &b, recipes, context)[0];
  for (int layer = 0; layer < 2; ++layer) {
    const auto post = static_cast<int>(ThresholdTensor::KeyPostRope);
    const bool same = layer == 1;  // both are rotated by theta 10000, which the numbers of numpy above are for
    CHECK((a.sets[0].layers[layer][post].lower == b.sets[0].layers[layer][post].lower) == same);
    CHECK((fit_a.layers[layer].key.codebooks[0].centroids == fit_b.layers[layer].key.codebooks[0].centroids) == same);
    CHECK(fit_a.layers[layer].value.codebooks[0].centroids == fit_b.layers[layer].value.codebooks[0].centroids);
  }
}

TEST_CASE("thresholds do not depend on the number of threads") {
  TempDir folder;
  write_small_calibration(folder.path() / "calib.h5");
  const CalibrationReader calibration(folder.path() / "calib.h5");
  RunContext three = quiet_context();
  three.threads = 3;
  const ThresholdsFile a = extract_thresholds(calibration, {{0.05}, {1}, 0.3}, quiet_context());
  const ThresholdsFile b = extract_thresholds(calibration, {{0.05}, {1}, 0.3}, three);
  for (int layer = 0; layer < 2; ++layer) {
    for (int tensor = 0; tensor < kThresholdTensors; ++tensor) {
      REQUIRE(a.sets[0].layers[layer][tensor].lower == b.sets[0].layers[layer][tensor].lower);
      REQUIRE(a.sets[0].layers[layer][tensor].upper == b.sets[0].layers[layer][tensor].upper);
      REQUIRE(a.sets[0].layers[layer][tensor].capped_outlier_rate ==
              b.sets[0].layers[layer][tensor].capped_outlier_rate);
    }
  }
}

TEST_CASE("the cap lowers the measured rate of keys, not their thresholds") {
  TempDir folder;
  write_small_calibration(folder.path() / "calib.h5");
  const CalibrationReader calibration(folder.path() / "calib.h5");
  const ThresholdsFile free = extract_thresholds(calibration, {{0.2}, {1}, 0.0}, quiet_context());
  const ThresholdsFile capped = extract_thresholds(calibration, {{0.2}, {1}, 0.125}, quiet_context());
  for (int layer = 0; layer < 2; ++layer) {
    const auto &before = free.sets[0].layers[layer], &after = capped.sets[0].layers[layer];
    REQUIRE(after[0].lower == before[0].lower);
    REQUIRE(after[0].outlier_rate == before[0].outlier_rate);
    // One of eight at most: tokens with an outlier, counted by hand.
    int tokens = 0;
    for (int token = 0; token < kSmallSequences * kSmallSeqlen; ++token) {
      if (token % kSmallSeqlen == 0) continue;
      bool any = false;
      for (int channel = 0; channel < 8; ++channel) {
        const float x = small_value(layer, Side::Key, false, token, channel);
        any |= x < before[0].lower[channel] || x > before[0].upper[channel];
      }
      tokens += any;
    }
    REQUIRE(after[0].capped_outlier_rate == Approx(tokens / (3 * 49 * 8.0)));
    REQUIRE(after[0].capped_outlier_rate < after[0].outlier_rate);
    REQUIRE(after[2].capped_outlier_rate == after[2].outlier_rate);
  }
}

TEST_CASE("a constant channel has a range of one point and no outliers") {
  TempDir folder;
  write_small_calibration(folder.path() / "calib.h5", [](float x, int, Side side, bool gradient, int, int channel) {
    return side == Side::Key && !gradient && channel == 2 ? 100.0f : x;
  });
  const CalibrationReader calibration(folder.path() / "calib.h5");
  const ThresholdsFile file = extract_thresholds(calibration, {{0.1}, {1}, 0.0}, quiet_context());
  const ChannelThresholds& key = file.sets[0].layers[0][0];
  REQUIRE(key.lower[2] == 100.0f);
  REQUIRE(key.upper[2] == 100.0f);
}

TEST_CASE("threshold options out of range are refused with their value") {
  TempDir folder;
  write_small_calibration(folder.path() / "calib.h5");
  const CalibrationReader calibration(folder.path() / "calib.h5");
  const auto attempt = [&](ThresholdOptions options) { extract_thresholds(calibration, options, quiet_context()); };
  REQUIRE_THROWS_WITH(attempt({{-1e-3}, {1}, 0}), ContainsSubstring("-0.001"));
  REQUIRE_THROWS_WITH(attempt({{0.5}, {1}, 0}), ContainsSubstring("0.5"));
  REQUIRE_THROWS_WITH(attempt({{0.01}, {17}, 0}), ContainsSubstring("17"));
  REQUIRE_THROWS_WITH(attempt({{0.01}, {1}, 1.5}), ContainsSubstring("1.5"));
  REQUIRE_THROWS_AS(attempt({{}, {1}, 0}), Error);
  REQUIRE_THROWS_AS(attempt({{0.01}, {}, 0}), Error);
}
