#include <kvq/quant/encoder.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include <kvq/core/half.h>
#include <kvq/core/parallel.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/head_rotation.h>
#include <kvq/quant/lane_encoder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/quant/token_outliers.h>
#include <kvq/stats/quantile.h>

namespace kvq {

namespace {

/// Tokens that one thread encodes and decodes before it goes on: values and codes stay in its level-2 cache.
constexpr std::int64_t kEncodeTokens = 64;

/// Calls `visit(index)` for the nonzero bytes, ascending.
template <typename Visit>
void for_each_marked(std::span<const std::uint8_t> mask, Visit visit) {
  std::size_t index = 0;
  for (; index + 8 <= mask.size(); index += 8) {
    std::uint64_t eight = 0;
    std::memcpy(&eight, mask.data() + index, 8);
    if (eight == 0) continue;
    for (std::size_t byte = index; byte < index + 8; ++byte) {
      if (mask[byte]) visit(byte);
    }
  }
  for (; index < mask.size(); ++index) {
    if (mask[index]) visit(index);
  }
}

}  // namespace

ExactOverflow::ExactOverflow(std::int64_t overflow_token, int overflow_channel, float overflow_value,
                             float overflow_limit)
    : Error(
          ErrorKind::Numeric,
          fmt::format("token {}, channel {}: {} does not fit the exact fp16 form, whose largest value here is {} (the "
                      "calibration saw nothing as large)",
                      overflow_token, overflow_channel, overflow_value, overflow_limit)),
      token(overflow_token),
      channel(overflow_channel),
      value(overflow_value),
      limit(overflow_limit) {}

struct SideEncoder::Tables {
  /// Channels that share a codebook.
  struct Segment {
    int begin, count;
    std::vector<float> boundaries, decoded;
  };

  Tables(const SideQuantizer& quantizer, SimdLevel level);
  void take_thresholds(const SideQuantizer& quantizer);
  void set_range(std::span<const float> new_lower, std::span<const float> new_upper);
  Tables with_window_range(std::span<const float> x, int threads) const;

  void encode(std::span<const float> x, std::int64_t first_token, EncodedTokens& out) const;
  void decode(const EncodedTokens& encoded, std::span<float> x) const;

  bool per_token() const { return recipe.range == RangeKind::Online; }
  std::uint16_t to_half(float value) const { return float_to_half(value * to_stored); }
  float from_half(std::uint16_t half) const { return half_to_float(half) * from_stored; }
  std::uint16_t exact(float value, std::int64_t token, int channel) const {
    const std::uint16_t half = to_half(value);
    if ((half & 0x7fffu) >= 0x7c00u) throw ExactOverflow(token, channel, value, kHalfMax * from_stored);
    return half;
  }

  const EncodeLoops& loops;
  SideRecipe recipe;
  int width;
  int per_end, cap;
  float to_stored, from_stored;  ///< 2^-exponent, 2^exponent
  std::optional<HeadRotation> rotation;
  std::optional<LaneEncoder> lane_encoder;  ///< instead of the segments
  std::vector<Segment> segments;
  std::vector<float> lower, upper, zero, scale, inverse;  ///< `[width]`; not for online ranges

 private:
  struct Scratch;
  void find_range(std::span<const float> x, std::int64_t token, Scratch& scratch, std::uint16_t* range) const;
  void mark_outliers(std::span<const float> x, Scratch& scratch) const;
  void encode_lanes(std::span<const float> x, std::int64_t first_token, EncodedTokens& out) const;
  void encode_per_channel(std::span<const float> x, Scratch& scratch, std::uint8_t* codes) const;
  void encode_per_token(std::span<const float> x, std::int64_t token, Scratch& scratch, std::uint8_t* codes,
                        std::uint16_t* range) const;
  void assign(const float* x_hat, std::uint8_t* codes) const;
};

struct SideEncoder::Tables::Scratch {
  Scratch(const Tables& tables)
      : x_hat(static_cast<std::size_t>(tables.width)),
        mask(static_cast<std::size_t>(tables.width)),
        extremes(tables.loops, tables.width) {}
  std::vector<float> x_hat;
  std::vector<std::uint8_t> mask;
  bool any_marked = false;
  ExtremeSelector extremes;
};

SideEncoder::Tables::Tables(const SideQuantizer& quantizer, SimdLevel level)
    : loops(encode_loops(level)),
      recipe(quantizer.recipe),
      width(quantizer.width()),
      per_end(outliers_per_end(recipe.outliers, width)),
      cap(outlier_cap(recipe.cap, width)),
      to_stored(power_of_two(-quantizer.exponent)),
      from_stored(power_of_two(quantizer.exponent)) {
  KVQ_ASSERT(is_streaming(recipe));
  const std::size_t books = quantizer.codebooks.size();
  if (recipe.rotation != Rotation::None)
    rotation.emplace(quantizer.rotation_scale, quantizer.kv_heads, quantizer.head_dim);
  if (recipe.widths == Widths::Pair) {
    lane_encoder.emplace(quantizer, level);
    take_thresholds(quantizer);
    return;
  }
  if (width <= 0 || books != static_cast<std::size_t>(codebook_count(recipe, quantizer.kv_heads, quantizer.head_dim))) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has {} codebooks for {} kv heads of {} channels; its recipe needs {}", books,
                     quantizer.kv_heads, quantizer.head_dim,
                     codebook_count(recipe, quantizer.kv_heads, quantizer.head_dim)));
  }
  const int segment_width = width / static_cast<int>(books);
  for (std::size_t book = 0; book < books; ++book) {
    const Codebook& codebook = quantizer.codebooks[book];
    const auto levels = static_cast<std::size_t>(code_levels(recipe));
    if (codebook.centroids.size() != levels || codebook.decoded.size() != levels) {
      fail(ErrorKind::Mismatch, fmt::format("codebook {} has {} centroids and {} decoded values; the recipe needs {}",
                                            book, codebook.centroids.size(), codebook.decoded.size(), levels));
    }
    segments.push_back(
        {static_cast<int>(book) * segment_width, segment_width, codebook.boundaries(), codebook.decoded});
  }
  if (LaneEncoder::serves(recipe)) lane_encoder.emplace(quantizer, level);
  take_thresholds(quantizer);
}

void SideEncoder::Tables::take_thresholds(const SideQuantizer& quantizer) {
  if (recipe.range != RangeKind::Static) return;
  if (quantizer.lower.size() != static_cast<std::size_t>(width) || quantizer.upper.size() != quantizer.lower.size()) {
    fail(ErrorKind::Mismatch, fmt::format("quantizer has {} lower and {} upper thresholds for {} channels",
                                          quantizer.lower.size(), quantizer.upper.size(), width));
  }
  set_range(quantizer.lower, quantizer.upper);
}

void SideEncoder::Tables::set_range(std::span<const float> new_lower, std::span<const float> new_upper) {
  lower.assign(new_lower.begin(), new_lower.end());
  upper.assign(new_upper.begin(), new_upper.end());
  zero.clear(), scale.clear(), inverse.clear();
  for (std::size_t channel = 0; channel < lower.size(); ++channel) {
    const ChannelAffine affine = channel_affine(lower[channel], upper[channel]);
    zero.push_back(affine.zero), scale.push_back(affine.scale);
    inverse.push_back(inverse_of(scale.back()));
  }
}

SideEncoder::Tables SideEncoder::Tables::with_window_range(std::span<const float> x, int threads) const {
  const auto channels = static_cast<std::size_t>(width);
  std::vector<float> new_lower(channels), new_upper(channels);
  parallel_for(width, threads, [&](std::int64_t channel) {
    std::vector<float> column;
    for (auto index = static_cast<std::size_t>(channel); index < x.size(); index += channels)
      column.push_back(x[index]);
    const QuantilePair ends = quantile_pair(column, 0.5 * recipe.outliers);
    new_lower[static_cast<std::size_t>(channel)] = ends.lower;
    new_upper[static_cast<std::size_t>(channel)] = ends.upper;
  });
  Tables tables = *this;
  tables.set_range(new_lower, new_upper);
  return tables;
}

void SideEncoder::Tables::assign(const float* x_hat, std::uint8_t* codes) const {
  for (const Segment& segment : segments) {
    loops.assign_codes(x_hat + segment.begin, segment.count, segment.boundaries.data(), recipe.bits,
                       codes + segment.begin);
  }
}

/// Channel axis.
void SideEncoder::Tables::mark_outliers(std::span<const float> x, Scratch& scratch) const {
  scratch.any_marked = false;
  if (recipe.outliers == 0.0) return;
  const int marked = loops.mark_outside(x.data(), lower.data(), upper.data(), width, scratch.mask.data());
  scratch.any_marked = marked > 0;
  if (marked > cap) keep_largest_excess(x, lower, upper, inverse, cap, scratch.mask);
}

void SideEncoder::Tables::encode_per_channel(std::span<const float> x, Scratch& scratch, std::uint8_t* codes) const {
  loops.normalise_channels(x.data(), zero.data(), inverse.data(), width, scratch.x_hat.data());
  assign(scratch.x_hat.data(), codes);
  mark_outliers(x, scratch);
}

/// Token axis: marks the outliers and stores the range of the rest.
void SideEncoder::Tables::find_range(std::span<const float> x, std::int64_t token, Scratch& scratch,
                                     std::uint16_t* range) const {
  scratch.any_marked = per_end > 0;
  if (2 * per_end >= width) {
    std::fill(scratch.mask.begin(), scratch.mask.end(), std::uint8_t{1});
    range[0] = range[1] = 0;
    return;
  }
  const ExtremeSelector::Rest rest = scratch.extremes.select(x, per_end, scratch.mask);
  range[0] = to_half(0.5f * rest.minimum + 0.5f * rest.maximum);
  const float stored_zero = from_half(range[0]);
  range[1] = to_half(std::max(rest.maximum - stored_zero, stored_zero - rest.minimum));
  if ((range[0] & 0x7fffu) >= 0x7c00u || (range[1] & 0x7fffu) >= 0x7c00u) {
    const float largest = std::abs(rest.minimum) > std::abs(rest.maximum) ? rest.minimum : rest.maximum;
    const auto at = std::find(x.begin(), x.end(), largest) - x.begin();
    throw ExactOverflow(token, static_cast<int>(at), largest, kHalfMax * from_stored);
  }
}

void SideEncoder::Tables::encode_per_token(std::span<const float> x, std::int64_t token, Scratch& scratch,
                                           std::uint8_t* codes, std::uint16_t* range) const {
  find_range(x, token, scratch, range);  // all exact: range 0, 0 and codes that are cleared later
  loops.normalise_token(x.data(), from_half(range[0]), inverse_of(from_half(range[1])), width, scratch.x_hat.data());
  assign(scratch.x_hat.data(), codes);
}

void SideEncoder::Tables::encode(std::span<const float> x, std::int64_t first_token, EncodedTokens& out) const {
  const auto channels = static_cast<std::size_t>(width);
  KVQ_ASSERT(x.size() % channels == 0);
  out.tokens = static_cast<std::int64_t>(x.size() / channels);
  out.codes.resize(x.size());
  out.token_range.resize(per_token() ? 2 * x.size() / channels : 0);
  out.outlier_channel.clear();
  out.outlier_value.clear();
  out.outlier_begin.assign(1, 0);
  std::vector<float> rotated;
  if (rotation) {
    rotated.assign(x.begin(), x.end());
    rotation->forward(rotated);
    x = rotated;
  }
  if (lane_encoder) return encode_lanes(x, first_token, out);
  Scratch scratch(*this);
  for (std::size_t token = 0; token * channels < x.size(); ++token) {
    const auto row = x.subspan(token * channels, channels);
    const std::int64_t absolute = first_token + static_cast<std::int64_t>(token);
    std::uint8_t* codes = out.codes.data() + token * channels;
    if (per_token()) {
      encode_per_token(row, absolute, scratch, codes, out.token_range.data() + 2 * token);
    } else {
      encode_per_channel(row, scratch, codes);
    }
    if (scratch.any_marked) {
      for_each_marked(scratch.mask, [&](std::size_t channel) {
        codes[channel] = 0;
        out.outlier_channel.push_back(static_cast<std::uint16_t>(channel));
        out.outlier_value.push_back(exact(row[channel], absolute, static_cast<int>(channel)));
      });
    }
    out.outlier_begin.push_back(static_cast<std::uint32_t>(out.outlier_channel.size()));
  }
}

void SideEncoder::Tables::encode_lanes(std::span<const float> x, std::int64_t first_token, EncodedTokens& out) const {
  const auto channels = static_cast<std::size_t>(width);
  Scratch scratch(*this);
  LaneEncoder::Scratch lane_scratch;
  std::vector<std::uint8_t> mask(kLanes * channels);
  std::vector<std::uint16_t> stored(kLanes * channels);
  float token_zero[kLanes], token_scale[kLanes], token_inverse[kLanes];
  for (std::int64_t begin = 0; begin < out.tokens; begin += kLanes) {
    const auto rows = x.subspan(static_cast<std::size_t>(begin) * channels);
    const int tokens = static_cast<int>(std::min<std::int64_t>(kLanes, out.tokens - begin));
    bool any_marked = false;
    for (int token = 0; token < tokens; ++token) {
      const auto row = rows.subspan(static_cast<std::size_t>(token) * channels, channels);
      if (per_token()) {
        std::uint16_t* range = out.token_range.data() + 2 * (begin + token);
        find_range(row, first_token + begin + token, scratch, range);
        token_zero[token] = from_half(range[0]), token_scale[token] = from_half(range[1]);
        token_inverse[token] = inverse_of(token_scale[token]);
      } else {
        mark_outliers(row, scratch);
      }
      const auto marks = mask.begin() + token * width;
      if (scratch.any_marked) {
        std::copy(scratch.mask.begin(), scratch.mask.end(), marks);
      } else {
        std::fill_n(marks, width, std::uint8_t{0});
      }
      any_marked |= scratch.any_marked;
    }
    const bool shared = !per_token();
    const LaneEncoder::Batch batch{tokens,
                                   rows.data(),
                                   shared ? zero.data() : token_zero,
                                   shared ? scale.data() : token_scale,
                                   shared ? inverse.data() : token_inverse,
                                   any_marked ? mask.data() : nullptr};
    lane_encoder->encode(batch, first_token + begin, lane_scratch,
                         out.codes.data() + static_cast<std::size_t>(begin) * channels, stored.data());
    for (int token = 0; token < tokens; ++token) {
      if (any_marked) {
        const std::size_t first = static_cast<std::size_t>(token) * channels;
        for_each_marked(std::span(mask).subspan(first, channels), [&](std::size_t channel) {
          out.outlier_channel.push_back(static_cast<std::uint16_t>(channel));
          out.outlier_value.push_back(stored[first + channel]);
        });
      }
      out.outlier_begin.push_back(static_cast<std::uint32_t>(out.outlier_channel.size()));
    }
  }
}

void SideEncoder::Tables::decode(const EncodedTokens& encoded, std::span<float> x) const {
  const auto channels = static_cast<std::size_t>(width);
  KVQ_ASSERT(x.size() == encoded.codes.size());
  for (std::size_t token = 0; token * channels < x.size(); ++token) {
    float* row = x.data() + token * channels;
    const std::uint8_t* codes = encoded.codes.data() + token * channels;
    if (segments.empty()) lane_encoder->decode(codes, zero.data(), scale.data(), row);  // widths=pair: static ranges
    for (const Segment& segment : segments) {
      const int begin = segment.begin;
      if (per_token()) {
        loops.decode_token(codes + begin, segment.count, segment.decoded.data(),
                           from_half(encoded.token_range[2 * token]), from_half(encoded.token_range[2 * token + 1]),
                           row + begin);
      } else {
        loops.decode_channels(codes + begin, segment.count, segment.decoded.data(), zero.data() + begin,
                              scale.data() + begin, row + begin);
      }
    }
    for (std::uint32_t entry = encoded.outlier_begin[token]; entry < encoded.outlier_begin[token + 1]; ++entry) {
      row[encoded.outlier_channel[entry]] = from_half(encoded.outlier_value[entry]);
    }
  }
  if (rotation) rotation->inverse(x);
}

SideEncoder::SideEncoder(const SideQuantizer& quantizer, SimdLevel level)
    : tables_(std::make_shared<const Tables>(quantizer, level)) {}

void SideEncoder::encode(std::span<const float> x, EncodedTokens& out) const {
  if (tables_->recipe.range == RangeKind::Window) {
    fail(ErrorKind::Usage,
         "range=window is an oracle that knows the evaluated window: only the simulated cache has it");
  }
  tables_->encode(x, 0, out);
}

void SideEncoder::decode(const EncodedTokens& encoded, std::span<float> x) const { tables_->decode(encoded, x); }

void SideEncoder::round_trip(std::span<float> x, int threads, std::span<std::uint32_t> outliers_per_token) const {
  if (x.empty()) return;
  if (tables_->recipe.range == RangeKind::Window && tables_->lower.empty()) {
    SideEncoder with_range = *this;
    with_range.tables_ = std::make_shared<const Tables>(tables_->with_window_range(x, threads));
    return with_range.round_trip(x, threads, outliers_per_token);
  }
  const auto channels = static_cast<std::size_t>(tables_->width);
  const auto tokens = static_cast<std::int64_t>(x.size() / channels);
  KVQ_ASSERT(outliers_per_token.empty() || static_cast<std::int64_t>(outliers_per_token.size()) == tokens);
  parallel_ranges(tokens, kEncodeTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    const auto block =
        x.subspan(static_cast<std::size_t>(begin) * channels, static_cast<std::size_t>(end - begin) * channels);
    EncodedTokens encoded;
    tables_->encode(block, begin, encoded);
    tables_->decode(encoded, block);
    if (outliers_per_token.empty()) return;
    for (std::int64_t token = begin; token < end; ++token) {
      const auto row = static_cast<std::size_t>(token - begin);
      outliers_per_token[static_cast<std::size_t>(token)] = encoded.outlier_begin[row + 1] - encoded.outlier_begin[row];
    }
  });
}

void SideEncoder::round_exact(std::span<float> x) const {
  const auto channels = static_cast<std::size_t>(tables_->width);
  for (std::size_t index = 0; index < x.size(); ++index) {
    const auto token = static_cast<std::int64_t>(index / channels);
    x[index] = tables_->from_half(tables_->exact(x[index], token, static_cast<int>(index % channels)));
  }
}

int outliers_per_end(double fraction, int width) {
  if (fraction == 0.0) return 0;
  return std::max(1, static_cast<int>(std::lround(fraction * width / 2.0)));
}

int outlier_cap(double cap, int width) {
  // Less a hair, so that 0.03 * 100 = 3.0000000000000004 means 3.
  return cap == 0.0 ? width : static_cast<int>(std::ceil(cap * width - 1e-9));
}

}  // namespace kvq
