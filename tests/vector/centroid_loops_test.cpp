// Nearest centroids by brute force, on every instruction set.

#include <algorithm>
#include <vector>

#include <kvq/core/rng.h>
#include <kvq/vector/centroid_loops.h>

#include "support/catch.h"

using namespace kvq;

namespace {

struct Sample {
  std::vector<float> x, weights, centroids, row_weights, before;
};

/// Values on a coarse grid, so that there are ties.
Sample random_sample(std::int64_t stride, int width, int clusters, Rng& rng) {
  const auto grid = [&](std::size_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = static_cast<float>(static_cast<int>(rng.uniform() * 16) - 8) * 0.25f;
    return values;
  };
  Sample sample;
  sample.x = grid(static_cast<std::size_t>(stride * width));
  sample.centroids = grid(static_cast<std::size_t>(clusters * width));
  sample.weights = grid(static_cast<std::size_t>(width));
  sample.row_weights = grid(static_cast<std::size_t>(stride));
  for (auto* weights : {&sample.weights, &sample.row_weights}) {
    for (float& weight : *weights) weight = weight * weight + 0.1f;
  }
  sample.before = grid(static_cast<std::size_t>(stride));
  for (float& distance : sample.before) distance = distance * distance * 3;
  return sample;
}

float distance(const Sample& sample, std::int64_t stride, std::int64_t row, const float* centroid) {
  float sum = 0;
  for (std::size_t channel = 0; channel < sample.weights.size(); ++channel) {
    const float difference =
        sample.x[channel * static_cast<std::size_t>(stride) + static_cast<std::size_t>(row)] - centroid[channel];
    sum += sample.weights[channel] * difference * difference;
  }
  return sum;
}

}  // namespace

TEST_CASE("Nearest centroids are those of brute force on every instruction set, the first of equals") {
  Rng rng(3);
  for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best_simd_level()) continue;  // this CPU cannot run it
    const CentroidLoops& loops = centroid_loops(level);
    for (const std::int64_t rows : {1, 7, 8, 31, 33, 64, 100, 129}) {
      for (const int width : {1, 2, 3, 4, 8}) {
        const int clusters = 1 + static_cast<int>(rng.uniform() * 40);
        const std::int64_t stride = rows + 5;
        const Sample sample = random_sample(stride, width, clusters, rng);
        const PointsByChannel points = {sample.x.data(), rows, stride, width, sample.weights.data()};
        std::vector<std::uint32_t> owners(static_cast<std::size_t>(rows));
        std::vector<float> distances(owners.size()), lesser(owners.size());
        std::vector<double> sums(static_cast<std::size_t>((rows + CentroidLoops::kBlock - 1) / CentroidLoops::kBlock));
        loops.nearest(points, sample.centroids.data(), clusters, owners.data(), distances.data());
        loops.lesser(points, sample.centroids.data(), sample.row_weights.data(), sample.before.data(), lesser.data(),
                     sums.data());
        std::vector<double> expected_sums(sums.size(), 0.0);
        INFO("level " << static_cast<int>(level) << ", " << rows << " rows of " << width << ", " << clusters
                      << " centroids");
        for (std::int64_t row = 0; row < rows; ++row) {
          const auto at = static_cast<std::size_t>(row);
          std::uint32_t owner = 0;
          float least = distance(sample, stride, row, sample.centroids.data());
          const float first = least;
          for (int cluster = 1; cluster < clusters; ++cluster) {
            const float other = distance(sample, stride, row, sample.centroids.data() + cluster * width);
            if (other < least) least = other, owner = static_cast<std::uint32_t>(cluster);
          }
          REQUIRE(owners[at] == owner);
          REQUIRE(distances[at] == least);
          REQUIRE(lesser[at] == std::min(sample.before[at], first));
          expected_sums[at / CentroidLoops::kBlock] +=
              static_cast<double>(sample.row_weights[at]) * static_cast<double>(lesser[at]);
        }
        for (std::size_t block = 0; block < sums.size(); ++block)
          CHECK_THAT(sums[block], Catch::Matchers::WithinRel(expected_sums[block], 1e-12) ||
                                      Catch::Matchers::WithinAbs(expected_sums[block], 1e-12));
      }
    }
  }
}
