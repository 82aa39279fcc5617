#include <kvq/stats/summary.h>

#include <vector>

#include "support/catch.h"

using namespace kvq;

TEST_CASE("Mean and standard error are numpy's") {
  // w = np.array([1.5, 2.25, -0.5, 4.0, 3.25, 0.75]); w.mean(), w.std(ddof=1) / np.sqrt(6)
  const std::vector<double> values = {1.5, 2.25, -0.5, 4.0, 3.25, 0.75};
  CHECK(mean(values) == 1.875);
  CHECK(*standard_error(values) == Approx(0.6731456008918131).epsilon(1e-14));
}

TEST_CASE("There is no standard error below five clusters") {
  const std::vector<double> values = {1.0, 2.0, 4.0, 8.0, 16.0};
  CHECK(standard_error(values).has_value());
  CHECK_FALSE(standard_error(std::span(values).first(4)).has_value());
  CHECK_FALSE(standard_error({}).has_value());
}
