// Fitting what goes beyond one range per channel or per token: groups, pooled ranges, rules, shared codebooks.

#include <algorithm>
#include <cmath>
#include <map>

#include <kvq/core/error.h>
#include <kvq/fit/fit.h>
#include <kvq/fit/kmeans1d.h>
#include <kvq/fit/thresholds.h>
#include <kvq/quant/range_finder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_simulator.h>

#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr int kWidth = 8;  // of kSmallShape

struct Fixture {
  TempDir folder;
  std::filesystem::path path = folder.path() / "calib.h5";
  std::optional<CalibrationReader> calibration;
  ThresholdsFile thresholds;
  std::vector<FitReport> reports;

  explicit Fixture(const Change& change = nullptr) {
    write_small_calibration(path, change);
    calibration.emplace(path);
    thresholds = extract_thresholds(*calibration, {{0.1}, {0, 1}, 0.0}, quiet_context());
  }
  Quantizer fit(const std::string& recipe, int threads = 1) {
    RunContext context = quiet_context();
    context.threads = threads;
    return fit_quantizers(*calibration, &thresholds, {parse_recipe(recipe)}, context, &reports)[0];
  }
};

/// Tokens of a sequence that a cache would have quantized in the end.
std::pair<int, int> coded_tokens(const Recipe& recipe, Side side) {
  const int group = recipe.side(side).axis == Axis::ChannelGroup ? recipe.side(side).group : 1;
  return {recipe.sinks, kSmallSeqlen - kSmallSeqlen % group};
}

}  // namespace

TEST_CASE("a calibrated range per token or group of channels is pooled over what shares it, sinks left out") {
  Fixture fixture;
  for (const auto& [recipe, group, tail] :
       {std::tuple<std::string, int, double>{"nuq3:value=token-group,group=3,range=static,key=token", 3, 0.0},
        {"nuq3-10%:value=token,range=static,key=token", 8, 0.05}}) {
    INFO(recipe);
    const Quantizer quantizer = fixture.fit(recipe);
    for (int layer = 0; layer < kSmallShape.layers; ++layer) {
      const std::vector<float> x = fixture.calibration->values(layer, Side::Value);
      const SideQuantizer& side = quantizer.layers[layer].value;
      REQUIRE(side.lower.size() == kWidth);
      for (int channel = 0; channel < kWidth; ++channel) {
        std::vector<float> pool;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const int token = static_cast<int>(i) / kWidth % kSmallSeqlen;
          if (token >= 1 && static_cast<int>(i) % kWidth / group == channel / group) pool.push_back(x[i]);
        }
        std::sort(pool.begin(), pool.end());
        const double place = tail * static_cast<double>(pool.size() - 1);
        const auto below = static_cast<std::size_t>(place);
        const double expected = pool[below] + (place - below) * (static_cast<double>(pool[below + 1]) - pool[below]);
        CHECK(side.lower[channel] == Approx(expected));
      }
    }
  }
}

TEST_CASE("codebooks of groups are the best for what the groups' ranges make of the calibration") {
  Fixture fixture;
  for (const std::string recipe :
       {"nuq2:key=token-group,group=3,weights=none", "nuq2-10%:key=token-group,group=4,weights=none",
        "nuq3:key=channel-group,group=16,weights=none,sink=0", "nuq2-10%:key=channel-group,group=16,weights=none",
        "nuq2-10%:key=token,rule=threshold,weights=none", "nuq2-10%:rule=topk,weights=none",
        "nuq2-10%:key=channel-group,group=8,rule=threshold,weights=none"}) {
    INFO(recipe);
    const Quantizer quantizer = fixture.fit(recipe);
    double error = 0;
    for (int layer = 0; layer < kSmallShape.layers; ++layer) {
      const SideQuantizer& side = quantizer.layers[layer].key;
      const auto [first, last] = coded_tokens(quantizer.recipe, Side::Key);
      const std::vector<float> x = fixture.calibration->values(layer, Side::Key);
      std::vector<float> x_hat;
      double layer_error = 0, weight = 0, exact = 0;
      for (int sequence = 0; sequence < kSmallSequences; ++sequence) {
        const auto begin = x.begin() + (sequence * kSmallSeqlen + first) * kWidth;
        const std::vector<float> part(begin, begin + (last - first) * kWidth);
        std::vector<float> decoded = part;
        SideSimulator(side).round_trip(decoded, first, 1);
        FoundRanges found;  // checked by tests/quant/range_finder_test.cpp
        RangeFinder(side).find(part, first, found);
        for (std::size_t i = 0; i < part.size(); ++i) {
          exact += found.exact[i];
          const std::size_t at = static_cast<std::size_t>(found.row[i / kWidth]) * kWidth + i % kWidth;
          if (found.exact[i] || found.scale[at] == 0) continue;
          x_hat.push_back((part[i] - found.zero[at]) / found.scale[at]);
          layer_error += std::pow((part[i] - decoded[i]) / found.scale[at], 2);
          weight += 1;
        }
      }
      const KMeans1dResult best = kmeans1d(x_hat, {}, 1 << side.recipe.bits, 1);
      REQUIRE(side.codebooks.size() == 1);
      for (std::size_t level = 0; level < best.centroids.size(); ++level)
        CHECK(side.codebooks[0].centroids[level] == Approx(best.centroids[level]).margin(1e-4));
      error += layer_error / weight / kSmallShape.layers;
      const double tokens =
          quantizer.recipe.key.axis == Axis::ChannelGroup && quantizer.recipe.key.rule == OutlierRule::Usual
              ? last - first  // the rate is 2k / group
              : kSmallSeqlen - first;
      if (quantizer.recipe.key.axis != Axis::ChannelGroup)
        CHECK(side.outlier_rate == Approx(exact / (kSmallSequences * tokens * kWidth)));
    }
    CHECK(fixture.reports[0].error[0] == Approx(error).epsilon(1e-3));
  }
  CHECK(fixture.fit("nuq2-10%:key=channel-group,group=32").layers[0].key.outlier_rate == Approx(4.0 / 32));
}

TEST_CASE("a codebook per group of channels is fitted to these channels alone") {
  Fixture fixture;
  const Quantizer by_two = fixture.fit("nuq2:share=2"), by_head = fixture.fit("nuq2:share=head");
  const Quantizer four = fixture.fit("nuq2:share=4");
  REQUIRE(by_two.layers[0].key.codebooks.size() == 4);
  for (const Side side : kSides) {  // heads of 4 channels
    CHECK(four.layers[1].side(side).codebooks[1].centroids == by_head.layers[1].side(side).codebooks[1].centroids);
  }
  Fixture other([](float x, int, Side, bool, int, int channel) { return channel < 6 ? 0.5f * x : x; });
  const Quantizer changed = other.fit("K=nuq2:share=2/V=nuq2");
  const auto& last = changed.layers[0].key.codebooks[3].centroids;
  for (std::size_t level = 0; level < last.size(); ++level)  // the unit of the weights is that of the whole layer
    CHECK(last[level] == Approx(by_two.layers[0].key.codebooks[3].centroids[level]).margin(1e-5));
  CHECK_THROWS_WITH(fixture.fit("nuq2:share=3"), ContainsSubstring("must divide"));
}

TEST_CASE("block formats have nothing to fit") {
  Fixture fixture;
  const Quantizer quantizer = fixture.fit("fp8:sink=1");
  CHECK(quantizer.layers[0].key.codebooks.empty());
  CHECK(std::isnan(fixture.reports[0].error[0]));
  CHECK_THROWS_WITH(fixture.fit("q4_0"), ContainsSubstring("blocks of 32"));
}

TEST_CASE("thresholds beside online ranges come from the thresholds file") {
  Fixture fixture;
  const Quantizer quantizer = fixture.fit("nuq3-10%:key=token,rule=threshold,cap=25%");
  CHECK(quantizer.layers[1].key.lower == fixture.thresholds.find(0.1, 1)->layers[1][0].lower);
  CHECK_THROWS_WITH(fixture.fit("nuq3-5%:key=token,rule=threshold"), ContainsSubstring("0.05"));
  CHECK_NOTHROW(fixture.fit("nuq3-5%:key=token,value=token-group,range=static"));
}

TEST_CASE("degenerate data gives finite ascending codebooks with every recipe, whatever the threads") {
  const std::vector<Change> changes = {
      nullptr,
      [](float x, int, Side, bool gradient, int, int channel) { return !gradient && channel % 2 == 0 ? 100.0f : x; },
      [](float x, int, Side, bool gradient, int, int) { return gradient ? x : 0.0f; },
      [](float x, int, Side, bool gradient, int, int) { return gradient ? 0.0f : x; },
      [](float x, int, Side, bool gradient, int token, int channel) {
        return !gradient && token == 77 && channel == 3 ? 60000.0f : x;
      }};
  for (std::size_t index = 0; index < changes.size(); ++index) {
    Fixture fixture(changes[index]);
    for (const std::string recipe :
         {"nuq2:key=token-group,value=token-group,group=3", "nuq2-10%:key=channel-group,value=channel-group,group=16",
          "nuq2-10%:rule=topk", "nuq3-10%:key=token,rule=threshold,qnorm,share=head", "kivi2:group=8,recent=16",
          "atom3", "flexgen4", "nuq2:key=token,value=token,range=window",
          "nuq2-10%:rope=post,rule=topk,value=channel,range=window", "nuq3:key=channel-group,rope=post,share=2"}) {
      CAPTURE(index, recipe);
      const Quantizer one = fixture.fit(recipe, 1), two = fixture.fit(recipe, 2);
      for (int layer = 0; layer < kSmallShape.layers; ++layer) {
        for (const Side side : kSides) {
          const std::vector<Codebook>& books = one.layers[layer].side(side).codebooks;
          REQUIRE(books.size() == static_cast<std::size_t>(codebook_count(one.recipe.side(side), 2, 4)));
          for (std::size_t book = 0; book < books.size(); ++book) {
            REQUIRE(std::is_sorted(books[book].centroids.begin(), books[book].centroids.end()));
            for (const float level : books[book].decoded) REQUIRE(std::isfinite(level));
            REQUIRE(books[book].decoded == two.layers[layer].side(side).codebooks[book].decoded);
          }
        }
      }
    }
  }
}
