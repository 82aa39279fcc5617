#include <kvq/fit/kmeans1d.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/core/rng.h>

#include "support/catch.h"

using namespace kvq;

namespace {

double error_of(const std::vector<float>& values, const std::vector<float>& weights,
                const std::vector<double>& centroids) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    double nearest = std::numeric_limits<double>::infinity();
    for (double centroid : centroids) nearest = std::min(nearest, (values[i] - centroid) * (values[i] - centroid));
    sum += (weights.empty() ? 1.0 : static_cast<double>(weights[i])) * nearest;
  }
  return sum;
}

/// Least error over all ways to cut the sorted values into at most `clusters` contiguous parts.
double brute_force(std::vector<float> values, std::vector<float> weights, int clusters) {
  const int count = static_cast<int>(values.size());
  if (weights.empty()) weights.assign(count, 1.0f);
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) { return values[a] < values[b]; });
  double least = std::numeric_limits<double>::infinity();
  for (unsigned cuts = 0; cuts < 1u << (count - 1); ++cuts) {
    if (__builtin_popcount(cuts) > clusters - 1) continue;
    double total = 0;
    int begin = 0;
    for (int end = 1; end <= count; ++end) {
      if (end < count && (cuts >> (end - 1) & 1u) == 0) continue;
      double weight = 0, moment = 0;
      for (int i = begin; i < end; ++i) {
        weight += weights[order[i]];
        moment += static_cast<double>(weights[order[i]]) * values[order[i]];
      }
      const double mean = weight > 0 ? moment / weight : 0;
      for (int i = begin; i < end; ++i)
        total += weights[order[i]] * (values[order[i]] - mean) * (values[order[i]] - mean);
      begin = end;
    }
    least = std::min(least, total);
  }
  return least;
}

float normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
  return static_cast<float>(radius * std::cos(2 * 3.14159265358979 * rng.uniform()));
}

/// Like keys after normalisation: clipped normal values, weights over several orders of magnitude.
void normal_data(int count, std::uint64_t seed, std::vector<float>& values, std::vector<float>& weights) {
  Rng rng(seed);
  for (int i = 0; i < count; ++i) {
    values.push_back(std::clamp(normal(rng) / 3, -1.0f, 1.0f));
    weights.push_back(std::exp(2 * normal(rng)));
  }
}

void check_shape(const KMeans1dResult& result, int clusters) {
  REQUIRE(static_cast<int>(result.centroids.size()) == clusters);
  REQUIRE(std::is_sorted(result.centroids.begin(), result.centroids.end()));
  for (double centroid : result.centroids) REQUIRE(std::isfinite(centroid));
}

}  // namespace

TEST_CASE("small sets are clustered as well as any contiguous partition can") {
  Rng rng(7);
  for (int trial = 0; trial < 300; ++trial) {
    const int count = 1 + static_cast<int>(rng.below(12));
    const int clusters = 1 + static_cast<int>(rng.below(6));
    const int kind = trial % 4;  // normal, ties, weighted, weights with zeros
    std::vector<float> values, weights;
    for (int i = 0; i < count; ++i) {
      values.push_back(kind == 1 ? static_cast<float>(rng.below(5)) : normal(rng));
      if (kind == 2) weights.push_back(std::exp(3 * normal(rng)));
      if (kind == 3) weights.push_back(static_cast<float>(rng.below(3)));
    }
    if (kind == 3) weights[0] = 1;
    const KMeans1dResult result = kmeans1d(values, weights, clusters, 1);
    check_shape(result, clusters);
    const double best = brute_force(values, weights, clusters);
    CAPTURE(trial, count, clusters);
    REQUIRE(result.error == Approx(best).epsilon(1e-9).margin(1e-12));
    REQUIRE(error_of(values, weights, result.centroids) == Approx(result.error).epsilon(1e-9).margin(1e-12));
  }
}

TEST_CASE("the histogram path reports the error of its centroids exactly and does not depend on threads") {
  std::vector<float> values, weights;
  normal_data(1'200'000, 11, values, weights);
  for (int clusters : {2, 8, 16, 64}) {
    const KMeans1dResult one = kmeans1d(values, weights, clusters, 1);
    const KMeans1dResult three = kmeans1d(values, weights, clusters, 3);
    CAPTURE(clusters);
    check_shape(one, clusters);
    REQUIRE(one.weight == Approx(std::accumulate(weights.begin(), weights.end(), 0.0)).epsilon(1e-12));
    REQUIRE(one.centroids == three.centroids);
    REQUIRE(one.error == three.error);
    REQUIRE(error_of(values, weights, one.centroids) == Approx(one.error).epsilon(1e-9));
    // A fixed point of Lloyd's iteration on the data: every centroid is the weighted mean of what is nearest to it.
    std::vector<double> weight(clusters), moment(clusters);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::size_t nearest = 0;
      while (nearest + 1 < one.centroids.size() &&
             values[i] > (one.centroids[nearest] + one.centroids[nearest + 1]) / 2)
        ++nearest;
      weight[nearest] += weights[i];
      moment[nearest] += static_cast<double>(weights[i]) * values[i];
    }
    for (int i = 0; i < clusters; ++i)
      REQUIRE(one.centroids[i] == Approx(moment[i] / weight[i]).margin(clusters > 16 ? 1e-5 : 1e-9));
  }
}

TEST_CASE("the histogram path agrees with the exact one on the same distribution") {
  // 32 768 values are still sorted; the same values four times go through the histogram. On a finite sample
  // neighbouring partitions are within 1e-6 of the best.
  std::vector<float> values, weights;
  normal_data(32768, 5, values, weights);
  const KMeans1dResult exact = kmeans1d(values, weights, 8, 1);
  std::vector<float> more, more_weights;
  for (int copy = 0; copy < 4; ++copy)
    for (std::size_t i = 0; i < values.size(); ++i) {
      more.push_back(values[i]);
      more_weights.push_back(weights[i]);
    }
  const KMeans1dResult copies = kmeans1d(more, more_weights, 8, 2);
  REQUIRE(copies.error == Approx(4 * exact.error).epsilon(1e-6));
  for (int i = 0; i < 8; ++i) REQUIRE(copies.centroids[i] == Approx(exact.centroids[i]).margin(1e-3));
}

TEST_CASE("weights of one are no weights, and weights of zero leave values out") {
  std::vector<float> values, weights;
  normal_data(50000, 3, values, weights);
  const std::vector<float> ones(values.size(), 1.0f);
  REQUIRE(kmeans1d(values, ones, 8, 1).centroids == kmeans1d(values, {}, 8, 1).centroids);

  std::vector<float> masked = weights, kept_values, kept_weights;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 3 == 0) {
      masked[i] = 0;
      values[i] *= 100;  // beyond everything that counts
    } else {
      kept_values.push_back(values[i]);
      kept_weights.push_back(weights[i]);
    }
  }
  const KMeans1dResult subset = kmeans1d(kept_values, kept_weights, 8, 1);
  const KMeans1dResult with_zeros = kmeans1d(values, masked, 8, 1);
  REQUIRE(with_zeros.error == Approx(subset.error).epsilon(1e-9));
  for (int i = 0; i < 8; ++i) REQUIRE(with_zeros.centroids[i] == Approx(subset.centroids[i]).margin(1e-9));
}

TEST_CASE("all zero weights count as equal ones") {
  std::vector<float> values, weights;
  normal_data(1000, 3, values, weights);
  const std::vector<float> zeros(values.size(), 0.0f);
  REQUIRE(kmeans1d(values, zeros, 4, 1).centroids == kmeans1d(values, {}, 4, 1).centroids);
}

TEST_CASE("scaling values or weights by a power of two scales the result") {
  std::vector<float> values, weights;
  normal_data(100000, 9, values, weights);
  const KMeans1dResult plain = kmeans1d(values, weights, 8, 1);
  for (int exponent : {-100, -20, 20, 90}) {
    std::vector<float> scaled = values, heavier = weights;
    for (float& value : scaled) value = std::ldexp(value, exponent);
    for (float& weight : heavier) weight = std::ldexp(weight, -20);
    const KMeans1dResult result = kmeans1d(scaled, heavier, 8, 1);
    REQUIRE(std::ldexp(result.error, 20 - 2 * exponent) == Approx(plain.error).epsilon(1e-9));
    for (int i = 0; i < 8; ++i)
      REQUIRE(std::ldexp(result.centroids[i], -exponent) == Approx(plain.centroids[i]).margin(1e-9));
  }
}

TEST_CASE("a far outlier does not blind the fit to the rest") {
  for (float far : {1e3f, 1e12f, 1e30f, -1e30f, 3e38f}) {
    std::vector<float> values, weights;
    normal_data(100000, 13, values, weights);
    const KMeans1dResult rest = kmeans1d(values, weights, 7, 1);
    values.push_back(far);
    weights.push_back(1);
    const KMeans1dResult all = kmeans1d(values, weights, 8, 1);
    CAPTURE(far);
    check_shape(all, 8);
    REQUIRE(all.error == Approx(rest.error).epsilon(1e-6));
    REQUIRE(all.centroids[far > 0 ? 7 : 0] == far);
  }
}

TEST_CASE("values far from zero and close together keep their differences") {
  std::vector<float> values, weights;
  normal_data(60000, 17, values, weights);
  const KMeans1dResult plain = kmeans1d(values, weights, 8, 1);
  for (float& value : values) value = 100.0f + value / 16;  // steps of 2^-17: coarse, but not for 8 clusters
  const KMeans1dResult moved = kmeans1d(values, weights, 8, 1);
  for (int i = 0; i < 8; ++i) REQUIRE((moved.centroids[i] - 100) * 16 == Approx(plain.centroids[i]).margin(1e-3));
}

TEST_CASE("fewer distinct values than clusters are met exactly") {
  const std::vector<std::vector<float>> sets = {
      {0.25f}, {-1, 1}, {-1, -0.5f, 0.25f, 1}, {0, 1e-30f, 1}, {5e-45f, 1e-44f}};
  for (const std::vector<float>& distinct : sets) {
    for (int copies : {1, 3, 40000}) {
      std::vector<float> values;
      for (int copy = 0; copy < copies; ++copy) values.insert(values.end(), distinct.begin(), distinct.end());
      const KMeans1dResult result = kmeans1d(values, {}, 16, 2);
      CAPTURE(copies, distinct);
      check_shape(result, 16);
      REQUIRE(result.error == 0);
      for (float value : distinct)
        REQUIRE(std::find(result.centroids.begin(), result.centroids.end(), value) != result.centroids.end());
    }
  }
  // Exactly as many: nothing is spare.
  const std::vector<float> four = {1, 2, 3, 4, 4, 1};
  REQUIRE(kmeans1d(four, {}, 4, 1).centroids == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("no values give zeros, one cluster gives the mean") {
  REQUIRE(kmeans1d({}, {}, 4, 1).centroids == std::vector<double>(4, 0.0));
  const std::vector<float> values = {1, 2, 6}, weights = {1, 1, 2};
  const KMeans1dResult result = kmeans1d(values, weights, 1, 1);
  REQUIRE(result.centroids[0] == Approx(3.75));
  REQUIRE(result.error == Approx(7.5625 + 3.0625 + 2 * 5.0625));
}

TEST_CASE("numbers that cannot be clustered are refused by position") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  for (float bad : {nan, infinity, -infinity}) {
    std::vector<float> values(100, 1.0f), weights(100, 1.0f);
    values[37] = bad;
    REQUIRE_THROWS_WITH(kmeans1d(values, weights, 2, 1), ContainsSubstring("value 37 of 100"));
    values[37] = 0;
    weights[99] = bad;
    REQUIRE_THROWS_WITH(kmeans1d(values, weights, 2, 1), ContainsSubstring("weight 99 of 100"));
  }
  std::vector<float> values(100, 1.0f), weights(100, 1.0f);
  weights[5] = -1;
  REQUIRE_THROWS_AS(kmeans1d(values, weights, 2, 1), Error);
}
