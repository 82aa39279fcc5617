// Groups, rules and thresholds against a plain retelling of the rules, value by value.

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "support/catch.h"

#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/pooled_range.h>
#include <kvq/quant/range_finder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_simulator.h>

using namespace kvq;

namespace {

constexpr int kHeads = 3, kHeadDim = 8, kWidth = kHeads * kHeadDim, kTokens = 200;

std::vector<float> random_cache(std::uint64_t seed, int tokens = kTokens) {
  Rng rng(seed);
  std::vector<float> x;
  for (int i = 0; i < tokens * kWidth; ++i) {
    const double u = 2 * rng.uniform() - 1;
    x.push_back(static_cast<float>(u * u * u * (1 + i % kWidth)));
    if (rng.below(9) == 0) x.back() = 0.5f;  // ties
  }
  return x;
}

SideQuantizer side_of(const std::string& recipe) {
  SideQuantizer side;
  side.recipe = parse_recipe("K=" + recipe + "/V=int4").key;
  side.kv_heads = kHeads, side.head_dim = kHeadDim;
  Rng rng(3);
  for (int book = 0; book < codebook_count(side.recipe, kHeads, kHeadDim); ++book) {
    Codebook codebook = uniform_codebook(side.recipe.bits);
    for (float& level : codebook.centroids) level += static_cast<float>(0.1 * rng.uniform());
    codebook.decoded = codebook.centroids;
    side.codebooks.push_back(codebook);
  }
  if (stores_thresholds(side.recipe)) {
    for (int channel = 0; channel < kWidth; ++channel) {
      side.lower.push_back(-0.3f * static_cast<float>(channel + 1));
      side.upper.push_back(0.4f * static_cast<float>(channel + 1));
    }
  }
  return side;
}

using Cell = std::pair<int, int>;  ///< token, channel

/// The k largest, then the k smallest of the rest; ties to the one that comes first.
std::set<Cell> extremes(std::vector<std::pair<float, Cell>> cells, int k) {
  std::set<Cell> marked;
  for (const float sign : {1.0f, -1.0f}) {
    for (int taken = 0; taken < k; ++taken) {
      const std::pair<float, Cell>* best = nullptr;
      for (const auto& cell : cells) {
        if (marked.contains(cell.second)) continue;
        if (!best || sign * cell.first > sign * best->first) best = &cell;
      }
      if (best) marked.insert(best->second);
    }
  }
  return marked;
}

float through_half(float x) { return half_to_float(float_to_half(x)); }

/// What must come back, cell by cell. Groups of tokens begin at multiples of their size.
std::vector<float> expected(const SideQuantizer& side, const std::vector<float>& x, int first_position) {
  const SideRecipe& recipe = side.recipe;
  const int tokens = static_cast<int>(x.size()) / kWidth;
  const auto at = [&](int token, int channel) { return x[static_cast<std::size_t>(token) * kWidth + channel]; };
  const auto scale_of = [&](int c) { return 0.5f * side.upper[c] - 0.5f * side.lower[c]; };
  const auto zero_of = [&](int c) { return 0.5f * side.lower[c] + 0.5f * side.upper[c]; };
  const bool topk = outlier_rule(recipe) == OutlierRule::TopK;
  std::set<Cell> exact;
  if (recipe.outliers > 0 && !topk) {
    for (int token = 0; token < tokens; ++token) {
      std::vector<std::pair<float, int>> out;
      for (int c = 0; c < kWidth; ++c) {
        const float beyond = std::max(side.lower[c] - at(token, c), at(token, c) - side.upper[c]);
        if (beyond > 0) out.push_back({-beyond / scale_of(c), c});
      }
      std::stable_sort(out.begin(), out.end());
      const auto most = recipe.cap > 0 ? static_cast<std::size_t>(std::ceil(recipe.cap * kWidth - 1e-9)) : out.size();
      for (std::size_t i = 0; i < std::min(most, out.size()); ++i) exact.insert({token, out[i].second});
    }
  }
  if (recipe.outliers > 0 && topk && recipe.axis != Axis::ChannelGroup) {
    const int k = std::max(1, static_cast<int>(std::lround(recipe.outliers * kWidth / 2)));
    for (int token = 0; token < tokens; ++token) {
      std::vector<std::pair<float, Cell>> cells;
      for (int c = 0; c < kWidth; ++c) {
        const float x_hat =
            recipe.range == RangeKind::Static ? (at(token, c) - zero_of(c)) * (1 / scale_of(c)) : at(token, c);
        cells.push_back({x_hat, {token, c}});
      }
      exact.merge(extremes(cells, k));
    }
  }
  const auto same_group = [&](int t, int c, int t2, int c2) {
    if (recipe.axis == Axis::ChannelGroup)
      return c == c2 && (first_position + t) / recipe.group == (first_position + t2) / recipe.group;
    return t == t2 && (recipe.axis == Axis::Token || c / recipe.group == c2 / recipe.group);
  };
  if (recipe.outliers > 0 && topk && recipe.axis == Axis::ChannelGroup) {
    const int k = std::max(1, static_cast<int>(std::lround(recipe.outliers * recipe.group / 2)));
    for (int c = 0; c < kWidth; ++c) {
      for (int first = 0; first < tokens;) {
        std::vector<std::pair<float, Cell>> cells;
        int t = first;
        for (; t < tokens && same_group(first, c, t, c); ++t) cells.push_back({at(t, c), {t, c}});
        exact.merge(extremes(cells, k));
        first = t;
      }
    }
  }
  std::vector<float> result;
  const float levels = static_cast<float>((1 << recipe.bits) - 1);
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < kWidth; ++c) {
      if (exact.contains({t, c})) {
        result.push_back(through_half(at(t, c)));
        continue;
      }
      float zero, scale;
      if (recipe.range == RangeKind::Static) {
        zero = zero_of(c), scale = scale_of(c);
      } else {
        float least = INFINITY, most = -INFINITY;
        for (int t2 = std::max(0, t - 256); t2 < std::min(tokens, t + 257); ++t2) {
          for (int c2 = 0; c2 < kWidth; ++c2) {
            if (!same_group(t, c, t2, c2) || exact.contains({t2, c2})) continue;
            least = std::min(least, at(t2, c2)), most = std::max(most, at(t2, c2));
          }
        }
        if (recipe.integer_zero) {
          const float step = through_half(std::max(most - least, 1e-5f) / levels);
          const float point = std::clamp(std::nearbyint(-least / step), 0.0f, levels);
          zero = (0.5f * levels - point) * step, scale = 0.5f * levels * step;
        } else {
          zero = through_half(0.5f * least + 0.5f * most);
          scale = through_half(std::max(most - zero, zero - least));
        }
      }
      const float x_hat = (at(t, c) - zero) * (scale > 0 ? 1 / scale : 0);
      const std::size_t book = static_cast<std::size_t>(c) * side.codebooks.size() / kWidth;
      const Codebook& codebook = side.codebooks[book];
      std::size_t code = 0;
      for (const float boundary : codebook.boundaries()) code += boundary < x_hat;
      result.push_back(zero + scale * codebook.decoded[code]);
    }
  }
  return result;
}

}  // namespace

TEST_CASE("Every axis, range and rule gives back what the rules say") {
  const std::vector<std::string> recipes = {
      "int3:key=token-group,group=8",
      "int3:key=token-group,group=7",  // a tail of 3 channels
      "int3:key=token-group,group=100",
      "int2-10%:key=token-group,group=12",
      "int3:key=channel-group,group=16",
      "int3:key=channel-group,group=64",
      "int3:key=channel-group,group=128",
      "nuq2-10%:key=channel-group,group=32",
      "int3-2%:key=channel-group,group=8",   // k = 1 of 8
      "int3-20%:key=channel-group,group=2",  // all exact
      "nuq3-5%:key=channel-group,group=32,rule=threshold",
      "nuq3-5%:key=token-group,group=8,rule=threshold",
      "nuq3-5%:key=token,rule=threshold",
      "nuq3-5%:key=token,rule=threshold,cap=9%",
      "nuq3-5%:rule=topk",
      "int2-30%:key=token,range=static,rule=topk",
      "nuq3-5%:key=token-group,group=8,range=static",
      "int4:key=token-group,group=8,zero=integer",
      "int2-10%:key=token,zero=integer",
      "int2:key=channel-group,group=16,zero=integer",
      "nuq3:key=token-group,group=8,share=head",
      "nuq3:key=token-group,group=12,share=4",
      "nuq3-2%:share=2",
      "nuq3-2%:key=token,share=4",
  };
  const std::vector<float> x = random_cache(1);
  for (const std::string& recipe : recipes) {
    INFO(recipe);
    const SideQuantizer side = side_of(recipe);
    const std::vector<float> wanted = expected(side, x, 0);
    std::vector<float> one = x, two = x;
    std::vector<std::uint32_t> counts(kTokens);
    SideSimulator(side).round_trip(one, 0, 1, counts);
    SideSimulator(side).round_trip(two, 0, 2);
    CHECK(one == wanted);
    CHECK(one == two);
    std::uint64_t exact = 0;
    for (const std::uint32_t count : counts) exact += count;
    CHECK((exact > 0) == (side.recipe.outliers > 0));
    CHECK(one != x);
  }
}

TEST_CASE("Groups of tokens lie at multiples of their size, whatever token comes first") {
  const std::vector<float> x = random_cache(2, 128 + 61);
  for (const std::string recipe :
       {"int3:key=channel-group,group=64", "int3-5%:key=channel-group,group=32", "int3:key=channel-group,group=128"}) {
    const SideQuantizer side = side_of(recipe);
    std::vector<float> from_3(x.begin(), x.begin() + (128 - 3) * kWidth);  // positions 3 to 127
    const std::vector<float> wanted = expected(side, from_3, 3);
    SideSimulator(side).round_trip(from_3, 3, 2);
    CHECK(from_3 == wanted);
  }
}

TEST_CASE("Values that are all equal, all zero or all exact come back within fp16") {
  for (const std::string recipe : {"int1:key=token-group,group=8", "int3:key=channel-group,group=16",
                                   "int2:key=channel-group,group=8,flush=64", "int3-5%:key=channel-group,group=64"}) {
    INFO(recipe);
    const SideQuantizer side = side_of(recipe);
    for (const float value : {0.0f, 100.0f, -7.3f}) {
      std::vector<float> x(64 * kWidth, value);
      SideSimulator(side).round_trip(x, 0, 1);
      for (const float back : x) REQUIRE(std::abs(back - value) <= std::abs(value) * 0x1p-10f);
    }
  }
  std::vector<float> zeros(64 * kWidth, 0.0f);
  SideSimulator(side_of("int4:key=token-group,zero=integer")).round_trip(zeros, 0, 1);
  for (const float back : zeros) REQUIRE(std::abs(back) < 2e-5f);
}

TEST_CASE("What does not fit names its token and channel") {
  std::vector<float> x = random_cache(4, 128);
  x[70 * kWidth + 13] = -2e5f;
  for (const std::string recipe : {"int4:key=token-group,group=8", "int4:key=channel-group,group=16",
                                   "int4-5%:key=channel-group", "int4-5%:key=token-group"}) {
    INFO(recipe);
    std::vector<float> copy = x;
    try {
      SideSimulator(side_of(recipe)).round_trip(copy, 0, 1);
      FAIL("accepted");
    } catch (const ExactOverflow& overflow) {
      CHECK(overflow.token == 70);
      CHECK(overflow.channel == 13);
      CHECK(overflow.value == -2e5f);
    }
  }
}

TEST_CASE("The window's range is pooled over what shares it") {
  const std::vector<float> x = random_cache(5);
  for (const auto& [recipe, group] : {std::pair<std::string, int>{"int4-4%:range=window", 1},
                                      {"int4-4%:key=token-group,group=7,range=window", 7},
                                      {"int4:key=token,range=window", kWidth},
                                      {"int4-4%:range=window,rule=topk", 1}}) {
    INFO(recipe);
    SideQuantizer side = side_of(recipe);
    std::vector<float> result = x;
    SideSimulator(side).round_trip(result, 0, 2);
    // Percentiles by sorting, numpy's 'linear'.
    side.recipe.range = RangeKind::Static;
    for (int c = 0; c < kWidth; ++c) {
      std::vector<float> pool;
      for (int i = 0; i < kTokens * kWidth; ++i) {
        if (i % kWidth / group == c / group) pool.push_back(x[static_cast<std::size_t>(i)]);
      }
      std::sort(pool.begin(), pool.end());
      const auto percentile = [&](double q) {
        const double place = q * static_cast<double>(pool.size() - 1);
        const auto below = static_cast<std::size_t>(place);
        const float high = pool[std::min(below + 1, pool.size() - 1)];
        return static_cast<float>(pool[below] +
                                  (place - static_cast<double>(below)) * (static_cast<double>(high) - pool[below]));
      };
      side.lower.push_back(percentile(0.5 * side.recipe.outliers));
      side.upper.push_back(percentile(1 - 0.5 * side.recipe.outliers));
    }
    const std::vector<float> wanted = expected(side, x, 0);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) worst = std::max<double>(worst, std::abs(result[i] - wanted[i]));
    CHECK(worst < 1e-4);
  }
}
