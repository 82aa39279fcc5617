// Fitting turbo: exponent and outlier channels from the sample, tables from the seed alone.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <kvq/core/error.h>
#include <kvq/fit/fit.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/quant/side_simulator.h>
#include <kvq/vector/turbo_codec.h>

#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

using namespace kvq;
using namespace kvq::test;

namespace {

std::vector<Quantizer> fit(const CalibrationReader& calibration, const std::vector<std::string>& texts,
                           std::vector<FitReport>* reports = nullptr) {
  RunContext context = quiet_context();
  std::vector<Recipe> recipes;
  for (const std::string& text : texts) recipes.push_back(parse_recipe(text));
  return fit_quantizers(calibration, nullptr, recipes, context, reports);
}

}  // namespace

TEST_CASE("turbo is fitted without thresholds; one set of tables serves all layers") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5", nullptr);
  const CalibrationReader calibration(folder / "calib.h5");
  std::vector<FitReport> reports;
  const std::vector<Quantizer> quantizers = fit(calibration, {"turbo3:seed=4", "K=turbo2:qjl/V=nuq3"}, &reports);
  CHECK(std::isnan(reports[0].error[0]));
  CHECK_FALSE(std::isnan(reports[1].error[1]));
  const int dim = calibration.header().shape.head_dim;
  TurboOptions options;
  options.seed = 4;
  const TurboTables wanted = make_turbo_tables(options, 3, dim);
  for (const LayerQuantizer& layer : quantizers[0].layers) {
    CHECK(layer.key.turbo == quantizers[0].layers[0].value.turbo);  // the same recipe on both sides
    CHECK(layer.key.turbo->parts[0].rotation.table() == wanted.parts[0].rotation.table());
    CHECK(layer.key.codebooks.empty());
    CHECK(layer.key.lower.empty());
  }
  CHECK(quantizers[1].layers[0].value.turbo == nullptr);
  CHECK(quantizers[1].layers[0].value.codebooks.size() == 1);
}

TEST_CASE("turbo's exponent leaves room for the largest norm, sinks included") {
  TempDir folder;
  // Four channels of a sink whose norm is twice what any of them is: beyond 2^12.
  const auto change = [](float value, int layer, Side side, bool gradient, int token, int channel) {
    return layer == 0 && side == Side::Key && !gradient && token == 0 && channel < 4 ? 4000.0f : value;
  };
  write_small_calibration(folder / "calib.h5", change);
  const CalibrationReader calibration(folder / "calib.h5");
  const Quantizer quantizer = fit(calibration, {"turbo3:sink=1"})[0];
  CHECK(choose_exponent(4000.0f) == 0);
  CHECK(quantizer.layers[0].key.exponent == choose_exponent(8000.0f));
  CHECK(quantizer.layers[0].key.exponent != 0);
  std::vector<float> x = calibration.values(0, Side::Key);
  CHECK_NOTHROW(SideSimulator(quantizer.layers[0].key).round_trip(x, 0, 1));
}

TEST_CASE("Outlier channels are those of most energy in each kv head, sinks left out, as the keys are coded") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5", nullptr);
  const CalibrationReader calibration(folder / "calib.h5");
  const CalibrationHeader& header = calibration.header();
  const int dim = header.shape.head_dim, width = header.shape.width();
  const std::string words = "turbo2:outlier-channels=2,outlier-bits=4,sink=1";
  const Quantizer quantizer = fit(calibration, {words})[0];
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    for (const Side side : kSides) {
      const std::vector<float> x = calibration.values(layer, side);
      std::vector<double> energy(static_cast<std::size_t>(width));
      for (std::int64_t token = 0; token < static_cast<std::int64_t>(x.size()) / width; ++token) {
        if (token % header.seqlen < 1) continue;
        for (int channel = 0; channel < width; ++channel)
          energy[static_cast<std::size_t>(channel)] += std::pow(static_cast<double>(x[token * width + channel]), 2);
      }
      std::vector<std::int32_t> wanted;
      for (int head = 0; head < header.shape.kv_heads; ++head) {
        const auto begin = energy.begin() + head * dim;
        const auto most = static_cast<std::int32_t>(std::max_element(begin, begin + dim) - begin);
        double second = -1;
        std::int32_t at = 0;
        for (std::int32_t channel = 0; channel < dim; ++channel) {
          if (channel != most && begin[channel] > second) second = begin[channel], at = channel;
        }
        wanted.push_back(std::min(most, at)), wanted.push_back(std::max(most, at));
      }
      CHECK(quantizer.layers[static_cast<std::size_t>(layer)].side(side).outlier_channels == wanted);
    }
  }
}

TEST_CASE("A head that turbo's options do not fit is refused before the fit") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5", nullptr);
  const CalibrationReader calibration(folder / "calib.h5");
  CHECK_THROWS_AS(fit(calibration, {"turbo2:outlier-channels=3,outlier-bits=4"}), Error);  // heads of 4
  CHECK_THROWS_AS(fit(calibration, {"turbo2:rotation=hadamard"}), Error);
}
