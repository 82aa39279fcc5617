#include <kvq/fit/pair_widths.h>

#include <numeric>

#include "support/catch.h"

#include <kvq/core/rng.h>

using namespace kvq;

TEST_CASE("Pairs are those of the rotary embedding, and halves of what does not rotate") {
  using Pairs = std::vector<std::pair<int, int>>;
  CHECK(channel_pairs(6, 6) == Pairs{{0, 3}, {1, 4}, {2, 5}});
  CHECK(channel_pairs(8, 4) == Pairs{{0, 2}, {1, 3}, {4, 6}, {5, 7}});
}

TEST_CASE("Allocated widths cost as little as the best of all allocations") {
  Rng rng(21);
  for (int trial = 0; trial < 60; ++trial) {
    const std::vector<int> choices = trial % 2 ? std::vector<int>{0, 1, 2, 3} : std::vector<int>{2, 3, 5};
    std::vector<double> distortion(choices.size()), costs(5);
    // Not always convex, nor even falling: the answer has to be right all the same.
    for (double& d : distortion) d = rng.uniform();
    for (double& cost : costs) cost = rng.uniform() * rng.uniform() * 10;
    const int total = trial % 2 ? 7 : 14;
    double best = 1e300;
    int combinations = 1;
    for (std::size_t pair = 0; pair < costs.size(); ++pair) combinations *= static_cast<int>(choices.size());
    for (int combination = 0; combination < combinations; ++combination) {
      int sum = 0, rest = combination;
      double cost = 0;
      for (const double pair_cost : costs) {
        const auto choice = static_cast<std::size_t>(rest) % choices.size();
        rest /= static_cast<int>(choices.size());
        sum += choices[choice];
        cost += pair_cost * distortion[choice];
      }
      if (sum == total) best = std::min(best, cost);
    }
    const std::vector<int> widths = allocate_widths(costs, choices, distortion, total);
    CHECK(std::accumulate(widths.begin(), widths.end(), 0) == total);
    double cost = 0;
    for (std::size_t pair = 0; pair < costs.size(); ++pair) {
      const auto choice = std::find(choices.begin(), choices.end(), widths[pair]) - choices.begin();
      REQUIRE(choice < static_cast<std::ptrdiff_t>(choices.size()));
      cost += costs[pair] * distortion[static_cast<std::size_t>(choice)];
    }
    CHECK(cost == Approx(best).epsilon(1e-12));
  }
}

TEST_CASE("Dear pairs get more bits than cheap ones") {
  const std::vector<int> choices = {1, 2, 3, 4};
  const std::vector<double> distortion = {0.36, 0.12, 0.035, 0.01}, costs = {100, 1, 1, 0.001};
  CHECK(allocate_widths(costs, choices, distortion, 8) == std::vector<int>{4, 2, 1, 1});
}
