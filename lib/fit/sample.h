#pragma once
// One side of one layer of a calibration file, and its channels as columns.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/stats/quantile.h>

namespace kvq {

/// Tokens of several sequences, of which the first `sinks` of each do not count.
struct TokenSample {
  std::span<const float> x;  ///< `[sequences * seqlen, width]`
  int width = 0;
  std::int64_t sequences = 0, seqlen = 0;
  int sinks = 0;

  std::int64_t tokens() const { return sequences * seqlen; }
  bool counts(std::int64_t token) const { return token % seqlen >= sinks; }
  std::int64_t counted_tokens() const { return sequences * (seqlen - sinks); }
};

/// `x` transposed: `[width, tokens]`.
std::vector<float> columns_of(const TokenSample& sample, int threads);

/// Percentiles f/2 and 1 - f/2 of each channel over the counted tokens, as `[width]`; fraction 0 gives minimum and
/// maximum.
struct ChannelRange {
  std::vector<float> lower, upper;
};
ChannelRange channel_range(const TokenSample& sample, double fraction, int threads);

/// The share of counted values strictly outside `range` when at most `most_per_token` of a token are let out.
double outside_rate(const TokenSample& sample, const ChannelRange& range, std::int64_t most_per_token, int threads);

float largest_magnitude(std::span<const float> values, int threads);

}  // namespace kvq
