#include <kvq/fit/qnorm.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <kvq/core/parallel.h>
#include <kvq/fit/moments.h>
#include <kvq/quant/encode_loops.h>

namespace kvq {

namespace {

constexpr std::int64_t kQNormValues = std::int64_t{1} << 16;

/// Calls visit(index, code) for the values of [begin, end) that take part, in order. Codes come from the encoder's
/// loops.
template <typename Visit>
void for_each_code(const Codebook& codebook, std::span<const float> values, std::span<const float> weights,
                   std::int64_t begin, std::int64_t end, Visit visit) {
  static const EncodeLoops& loops = encode_loops(best_simd_level());
  constexpr std::int64_t kChunk = 1024;
  std::uint8_t codes[kChunk];
  const std::vector<float> boundaries = codebook.boundaries();
  const int bits = std::bit_width(codebook.centroids.size()) - 1;
  for (std::int64_t chunk = begin; chunk < end; chunk += kChunk) {
    const std::int64_t length = std::min(kChunk, end - chunk);
    loops.assign_codes(values.data() + chunk, static_cast<int>(length), boundaries.data(), bits, codes);
    for (std::int64_t i = 0; i < length; ++i)
      if (weights[chunk + i] > 0) visit(chunk + i, codes[i]);
  }
}

}  // namespace

void apply_qnorm(Codebook& codebook, std::span<const float> values, std::span<const float> weights, int threads) {
  const auto total = static_cast<std::int64_t>(values.size());
  struct Both {
    Moments original, coded;
  };
  std::vector<Both> blocks((total + kQNormValues - 1) / kQNormValues);
  parallel_ranges(total, kQNormValues, threads, [&](std::int64_t begin, std::int64_t end) {
    double count = 0, sum = 0, squares = 0;
    std::vector<std::int64_t> used(codebook.centroids.size());
    for_each_code(codebook, values, weights, begin, end, [&](std::int64_t i, int code) {
      count += 1;
      sum += values[i];
      squares += static_cast<double>(values[i]) * values[i];
      ++used[code];
    });
    if (count == 0) return;
    Both& block = blocks[begin / kQNormValues];
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
  const auto total = static_cast<std::int64_t>(values.size());
  std::vector<CodebookError> blocks((total + kQNormValues - 1) / kQNormValues);
  parallel_ranges(total, kQNormValues, threads, [&](std::int64_t begin, std::int64_t end) {
    CodebookError sum;
    for_each_code(codebook, values, weights, begin, end, [&](std::int64_t i, int code) {
      const double difference = static_cast<double>(values[i]) - codebook.decoded[code];
      sum.error += weights[i] * difference * difference;
      sum.weight += weights[i];
    });
    blocks[begin / kQNormValues] = sum;
  });
  CodebookError all;
  for (const CodebookError& block : blocks) {
    all.error += block.error;
    all.weight += block.weight;
  }
  return all;
}

}  // namespace kvq
