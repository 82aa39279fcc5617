#include <kvq/fit/qnorm.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include <kvq/core/parallel.h>
#include <kvq/fit/moments.h>

namespace kvq {

namespace {

constexpr std::int64_t kBlock = std::int64_t{1} << 16;

int code_of(const std::vector<float>& boundaries, float x_hat) {
  return static_cast<int>(std::lower_bound(boundaries.begin(), boundaries.end(), x_hat) - boundaries.begin());
}

}  // namespace

void apply_qnorm(Codebook& codebook, std::span<const float> values, std::span<const float> weights, int threads) {
  const std::vector<float> boundaries = codebook.boundaries();
  const auto total = static_cast<std::int64_t>(values.size());
  struct Both {
    Moments original, coded;
  };
  std::vector<Both> blocks((total + kBlock - 1) / kBlock);
  parallel_ranges(total, kBlock, threads, [&](std::int64_t begin, std::int64_t end) {
    double count = 0, sum = 0, squares = 0;
    std::vector<std::int64_t> used(codebook.centroids.size());
    for (std::int64_t i = begin; i < end; ++i) {
      if (!(weights[i] > 0)) continue;
      count += 1;
      sum += values[i];
      squares += static_cast<double>(values[i]) * values[i];
      ++used[code_of(boundaries, values[i])];
    }
    if (count == 0) return;
    Both& block = blocks[begin / kBlock];
    // Values lie in [-1, 1]: the plain sums lose nothing that matters.
    block.original = {count, sum / count, std::max(0.0, squares - sum * sum / count)};
    for (std::size_t code = 0; code < used.size(); ++code)
      block.coded.merge({static_cast<double>(used[code]), codebook.centroids[code], 0});
  });
  Both all;
  for (const Both& block : blocks) {
    all.original.merge(block.original);
    all.coded.merge(block.coded);
  }
  if (!(all.coded.spread > 0)) return;
  const double gain = std::sqrt(all.original.spread / all.coded.spread);
  for (std::size_t code = 0; code < codebook.decoded.size(); ++code)
    codebook.decoded[code] = static_cast<float>((codebook.centroids[code] - all.coded.mean) * gain + all.original.mean);
}

CodebookError codebook_error(const Codebook& codebook, std::span<const float> values, std::span<const float> weights,
                             int threads) {
  const std::vector<float> boundaries = codebook.boundaries();
  const auto total = static_cast<std::int64_t>(values.size());
  std::vector<CodebookError> blocks((total + kBlock - 1) / kBlock);
  parallel_ranges(total, kBlock, threads, [&](std::int64_t begin, std::int64_t end) {
    CodebookError& block = blocks[begin / kBlock];
    for (std::int64_t i = begin; i < end; ++i) {
      if (!(weights[i] > 0)) continue;
      const double difference = static_cast<double>(values[i]) - codebook.decoded[code_of(boundaries, values[i])];
      block.error += weights[i] * difference * difference;
      block.weight += weights[i];
    }
  });
  CodebookError all;
  for (const CodebookError& block : blocks) {
    all.error += block.error;
    all.weight += block.weight;
  }
  return all;
}

}  // namespace kvq
