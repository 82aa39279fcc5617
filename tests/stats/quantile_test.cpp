#include <kvq/stats/quantile.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.h"

using namespace kvq;

namespace {

std::vector<float> scattered() {
  std::vector<float> values;
  for (int i = 0; i < 1009; ++i) values.push_back(static_cast<float>((i * i * 7919LL + i * 31LL) % 1009 - 400) * 0.37f);
  return values;
}

}  // namespace

TEST_CASE("Quantiles are numpy's") {
  // i = np.arange(1009); x = ((i*i*7919 + i*31) % 1009 - 400).astype(np.float32) * np.float32(0.37)
  // np.float32(np.quantile(x.astype(np.float64), q))
  const std::vector<std::pair<double, float>> expected = {{0.0, -148.0f},      {0.0025, -146.89f},  {0.005, -146.1204f},
                                                          {0.01, -143.93001f}, {0.25, -54.760002f}, {0.5, 33.670002f},
                                                          {0.75, 123.58f},     {0.995, 223.4652f},  {1.0, 224.59f}};
  for (const auto& [q, value] : expected) {
    std::vector<float> values = scattered();
    CHECK(quantile(values, q) == value);
  }
}

TEST_CASE("Quantiles equal interpolation in the sorted data at every probability and size") {
  for (const std::size_t count : {1, 2, 3, 5, 17, 100}) {
    std::vector<float> values = scattered();
    values.resize(count);
    std::vector<float> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    for (int step = 0; step <= 40; ++step) {
      const double q = step / 40.0;
      const double position = q * static_cast<double>(count - 1);
      const auto below = static_cast<std::size_t>(std::floor(position));
      const auto above = static_cast<std::size_t>(std::ceil(position));
      const double expected = sorted[below] + (position - std::floor(position)) * (sorted[above] - sorted[below]);
      CHECK(quantile(values, q) == Approx(expected).epsilon(1e-6).margin(1e-6));
    }
  }
}

TEST_CASE("A pair of quantiles is symmetric in its tails, and the whole range for tail 0") {
  std::vector<float> values = scattered();
  const QuantilePair pair = quantile_pair(values, 0.005);
  CHECK(pair.lower == -146.1204f);
  CHECK(pair.upper == 223.4652f);
  const QuantilePair ends = quantile_pair(values, 0.0);
  CHECK(ends.lower == -148.0f);
  CHECK(ends.upper == 224.59f);
}

TEST_CASE("Equal values have no interpolation error") {
  std::vector<float> values(33, 100.03f);
  const QuantilePair pair = quantile_pair(values, 0.013);
  CHECK(pair.lower == 100.03f);
  CHECK(pair.upper == 100.03f);
}
