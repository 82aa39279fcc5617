#include <kvq/fit/sample.h>

#include <algorithm>
#include <cmath>

#include <kvq/core/parallel.h>

namespace kvq {

namespace {
constexpr std::int64_t kBlockTokens = 256;
constexpr std::int64_t kBlockValues = std::int64_t{1} << 18;
}  // namespace

std::vector<float> columns_of(const TokenSample& sample, int threads) {
  std::vector<float> columns(sample.x.size());
  const std::int64_t tokens = sample.tokens();
  // Tiles: the lines of a whole column of the source would not stay in the cache until they are used up.
  constexpr std::int64_t kTile = 16;
  parallel_ranges(tokens, kBlockTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = 0; first < sample.width; first += kTile) {
      const std::int64_t last = std::min<std::int64_t>(first + kTile, sample.width);
      for (std::int64_t token = begin; token < end; ++token)
        for (std::int64_t channel = first; channel < last; ++channel)
          columns[channel * tokens + token] = sample.x[token * sample.width + channel];
    }
  });
  return columns;
}

ChannelRange channel_range(const TokenSample& sample, double fraction, int threads) {
  ChannelRange range;
  range.lower.resize(sample.width);
  range.upper.resize(sample.width);
  if (fraction == 0) {
    std::copy_n(sample.x.begin() + static_cast<std::ptrdiff_t>(sample.sinks) * sample.width, sample.width,
                range.lower.begin());
    range.upper = range.lower;
    for (std::int64_t token = 0; token < sample.tokens(); ++token) {
      if (!sample.counts(token)) continue;
      const float* row = sample.x.data() + token * sample.width;
      for (int channel = 0; channel < sample.width; ++channel) {
        range.lower[channel] = row[channel] < range.lower[channel] ? row[channel] : range.lower[channel];
        range.upper[channel] = row[channel] > range.upper[channel] ? row[channel] : range.upper[channel];
      }
    }
    return range;
  }
  const std::vector<float> columns = columns_of(sample, threads);
  parallel_for(sample.width, threads, [&](std::int64_t channel) {
    std::vector<float> counted;
    for (std::int64_t sequence = 0; sequence < sample.sequences; ++sequence) {
      const auto begin = columns.begin() + channel * sample.tokens() + sequence * sample.seqlen;
      counted.insert(counted.end(), begin + sample.sinks, begin + sample.seqlen);
    }
    const QuantilePair pair = quantile_pair(counted, fraction / 2);
    range.lower[channel] = pair.lower;
    range.upper[channel] = pair.upper;
  });
  return range;
}

double outside_rate(const TokenSample& sample, const ChannelRange& range, std::int64_t most_per_token, int threads) {
  std::vector<std::int64_t> outside((sample.tokens() + kBlockTokens - 1) / kBlockTokens);
  parallel_ranges(sample.tokens(), kBlockTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    const float *lower = range.lower.data(), *upper = range.upper.data();
    for (std::int64_t token = begin; token < end; ++token) {
      if (!sample.counts(token)) continue;
      const float* row = sample.x.data() + token * sample.width;
      std::int32_t count = 0;
      for (int channel = 0; channel < sample.width; ++channel)
        count += static_cast<int>(row[channel] < lower[channel]) | static_cast<int>(row[channel] > upper[channel]);
      outside[begin / kBlockTokens] += std::min<std::int64_t>(count, most_per_token);
    }
  });
  std::int64_t total = 0;
  for (std::int64_t count : outside) total += count;
  return static_cast<double>(total) / static_cast<double>(sample.counted_tokens() * sample.width);
}

float largest_magnitude(std::span<const float> values, int threads) {
  const auto total = static_cast<std::int64_t>(values.size());
  std::vector<float> largest((total + kBlockValues - 1) / kBlockValues);
  parallel_ranges(total, kBlockValues, threads, [&](std::int64_t begin, std::int64_t end) {
    constexpr int kLanes = 16;
    float lanes[kLanes] = {};
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const float magnitude = std::abs(values[i + lane]);
        lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
      }
    }
    for (; i < end; ++i) lanes[0] = std::max(lanes[0], std::abs(values[i]));
    largest[begin / kBlockValues] = *std::max_element(lanes, lanes + kLanes);
  });
  return largest.empty() ? 0.0f : *std::max_element(largest.begin(), largest.end());
}

}  // namespace kvq
