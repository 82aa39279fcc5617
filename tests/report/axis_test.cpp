#include "support/catch.h"

#include <cmath>

#include <kvq/report/axis.h>

using namespace kvq;

TEST_CASE("A linear axis has round ends that hold all values, and ticks at equal distances") {
  const std::vector<double> values = {2.39, 3.39, 4.39};
  const Axis axis = make_axis(values, false);
  CHECK(axis.ticks == std::vector<double>{2.0, 2.5, 3.0, 3.5, 4.0, 4.5});
  CHECK(axis.place(2.0) == 0.0);
  CHECK(axis.place(4.5) == 1.0);
  CHECK(axis.place(3.25) == Approx(0.5));
}

TEST_CASE("A logarithmic axis has ticks at 1, 2 and 5, and equal ratios are equal distances") {
  const std::vector<double> values = {0.0154, 0.0729, 0.352};
  const Axis axis = make_axis(values, true);
  REQUIRE(axis.log);
  REQUIRE(axis.ticks.size() == 6);
  const double expected[] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5};
  for (std::size_t tick = 0; tick < 6; ++tick) CHECK(axis.ticks[tick] == Approx(expected[tick]));
  CHECK(axis.place(0.2) - axis.place(0.1) == Approx(axis.place(0.02) - axis.place(0.01)));
}

TEST_CASE("Where a value is not positive the axis is linear, whatever was asked for") {
  const std::vector<double> values = {-0.001, 0.05};
  CHECK_FALSE(make_axis(values, true).log);
}

TEST_CASE("No value, one value, and values that are not finite still give an axis") {
  for (const bool log : {false, true}) {
    for (const std::vector<double>& values : {std::vector<double>{}, {0.0}, {3.0, 3.0}, {NAN, INFINITY, 0.25}}) {
      const Axis axis = make_axis(values, log);
      CHECK(axis.high > axis.low);
      CHECK(axis.ticks.size() >= 2);
      CHECK(axis.place(NAN) == 0.0);
    }
  }
}

TEST_CASE("Values that are huge, or closer than numbers are, end in an axis of a few ticks") {
  for (const std::vector<double>& values : std::vector<std::vector<double>>{
           {1e15, 1e15 + 0.125}, {-1e15, -1e15 + 0.125}, {1, 1e300}, {-1e308, 1e308}, {1e-300, 1e-299}, {1e30, 1e29}}) {
    for (const bool log : {false, true}) {
      const Axis axis = make_axis(values, log);
      INFO(values[0] << " and " << values[1]);
      CHECK(axis.ticks.size() >= 2);
      CHECK(axis.ticks.size() < 50);
      CHECK(axis.low < axis.high);
    }
  }
}

TEST_CASE("Tick labels are short and lose no digit") {
  CHECK(tick_label(0.30000000000000004) == "0.3");
  CHECK(tick_label(2000) == "2000");
  CHECK(tick_label(-0.05) == "-0.05");
  CHECK(tick_label(1e-17) == "0");
  CHECK(tick_label(1e-5) == "1e-05");
}
