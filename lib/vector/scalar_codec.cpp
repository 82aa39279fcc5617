#include <kvq/vector/scalar_codec.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/magnitude.h>

namespace kvq {

std::int64_t check_rows(std::span<const float> x, int dim) {
  const std::size_t channels = static_cast<std::size_t>(dim);
  KVQ_ASSERT(dim > 0 && x.size() % channels == 0);
  if (largest_magnitude_bits(x) >= kNotFinite) {
    const std::size_t at =
        std::find_if_not(x.begin(), x.end(), [](float value) { return std::isfinite(value); }) - x.begin();
    fail(ErrorKind::Numeric, fmt::format("row {}, channel {}: {}", at / channels, at % channels, x[at]));
  }
  return static_cast<std::int64_t>(x.size() / channels);
}

std::size_t zero_block_bytes(const VectorCodec& codec, std::int64_t rows) {
  const std::vector<float> zeros(static_cast<std::size_t>(rows * codec.dim()), 0.0f);
  std::vector<std::byte> bytes;
  codec.encode(zeros, bytes);
  return bytes.size();
}

namespace {

double row_size(std::span<const float> values, RowScale scale) {
  if (scale == RowScale::Max) return largest_magnitude(values);
  constexpr std::size_t kSums = 8;  // several at once, in an order that does not depend on the compiler
  double squares[kSums] = {};
  std::size_t channel = 0;
  for (; channel + kSums <= values.size(); channel += kSums) {
    for (std::size_t sum = 0; sum < kSums; ++sum) {
      const double value = values[channel + sum];
      squares[sum] += value * value;
    }
  }
  for (; channel < values.size(); ++channel)
    squares[0] += static_cast<double>(values[channel]) * static_cast<double>(values[channel]);
  double all = 0;
  for (const double sum : squares) all += sum;
  return std::sqrt(all);
}

}  // namespace

int scale_exponent(std::span<const float> sample, int dim, RowScale scale) {
  const std::size_t channels = static_cast<std::size_t>(dim);
  double largest = 0;
  const std::int64_t rows = check_rows(sample, dim);
  for (std::int64_t row = 0; row < rows; ++row)
    largest = std::max(largest, row_size(sample.subspan(static_cast<std::size_t>(row) * channels, channels), scale));
  if (largest == 0) return 0;
  return std::clamp(std::ilogb(largest) - 8, kLeastScaleExponent, kLargestScaleExponent);
}

std::uint16_t half_row_scale(std::span<const float> values, RowScale scale, int exponent, std::int64_t row) {
  const double size = row_size(values, scale);
  const std::uint16_t half = float_to_half(static_cast<float>(std::ldexp(size, -exponent)));
  if (half >= 0x7c00u) {
    const auto by_magnitude = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    const std::size_t largest = std::max_element(values.begin(), values.end(), by_magnitude) - values.begin();
    const double limit = std::ldexp(static_cast<double>(kHalfMax), exponent);
    throw VectorOverflow(
        row, static_cast<int>(largest), values[largest], static_cast<float>(limit),
        fmt::format("its {} is {:.6g}, and scales end at {:.6g}; its largest value is {:.6g} in channel {}",
                    scale == RowScale::Norm ? "norm" : "largest magnitude", size, limit, values[largest], largest));
  }
  return row_scale(half, exponent) > 0 ? half : std::uint16_t{0};
}

float row_scale(std::uint16_t half, int exponent) {
  const float scale = std::ldexp(half_to_float(half), exponent);
  return scale >= std::numeric_limits<float>::min() ? scale : 0.0f;
}

ScalarCodec::ScalarCodec(int dim, RowScale scale, std::vector<float> levels, int exponent)
    : dim_(dim), exponent_(exponent), scale_(scale), levels_(std::move(levels)) {
  KVQ_ASSERT(exponent_ >= kLeastScaleExponent && exponent_ <= kLargestScaleExponent);
  KVQ_ASSERT(dim_ > 0 && levels_.size() >= 2 && levels_.size() <= 256);
  KVQ_ASSERT(std::is_sorted(levels_.begin(), levels_.end()) && levels_.front() >= -1 && levels_.back() <= 1);
  bits_ = std::bit_width(levels_.size() - 1);
  for (std::size_t level = 0; level + 1 < levels_.size(); ++level)
    boundaries_.push_back(0.5f * (levels_[level] + levels_[level + 1]));
}

std::size_t ScalarCodec::row_bytes() const { return 2 + packed_bytes(static_cast<std::size_t>(dim_), bits_); }

std::uint16_t ScalarCodec::quantize(std::span<const float> values, std::int64_t row,
                                    std::span<std::uint8_t> codes) const {
  const std::uint16_t half = half_row_scale(values, scale_, exponent_, row);
  const float stored = row_scale(half, exponent_);
  const float inverse = stored > 0 ? 1.0f / stored : 0.0f;
  const std::size_t count = values.size();
  if (boundaries_.size() <= 15) {  // few: the compiler turns the inner loop into vector code
    std::fill(codes.begin(), codes.end(), std::uint8_t{0});
    for (const float boundary : boundaries_) {
      for (std::size_t channel = 0; channel < count; ++channel)
        codes[channel] = static_cast<std::uint8_t>(codes[channel] + (values[channel] * inverse > boundary ? 1 : 0));
    }
    return half;
  }
  for (std::size_t channel = 0; channel < count; ++channel) {
    const auto above = std::lower_bound(boundaries_.begin(), boundaries_.end(), values[channel] * inverse);
    codes[channel] = static_cast<std::uint8_t>(above - boundaries_.begin());
  }
  return half;
}

void ScalarCodec::restore(std::uint16_t half_scale, std::span<const std::uint8_t> codes,
                          std::span<float> values) const {
  if (half_scale >= 0x7c00u) fail(ErrorKind::Io, fmt::format("scale of a row: fp16 bits {:#06x}", half_scale));
  const float stored = row_scale(half_scale, exponent_);
  for (std::size_t channel = 0; channel < values.size(); ++channel) {
    if (codes[channel] >= levels_.size())
      fail(ErrorKind::Io, fmt::format("code {} of a codebook of {} levels", codes[channel], levels_.size()));
    values[channel] = levels_[codes[channel]] * stored;
  }
}

void ScalarCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  const std::int64_t rows = check_rows(x, dim_);
  const std::size_t channels = static_cast<std::size_t>(dim_);
  std::vector<std::uint8_t> codes(channels);
  out.reserve(out.size() + static_cast<std::size_t>(rows) * row_bytes());
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::uint16_t half = quantize(x.subspan(static_cast<std::size_t>(row) * channels, channels), row, codes);
    put_half(half, out);
    pack_bits(codes, bits_, out);
  }
}

void ScalarCodec::decode(std::span<const std::byte> bytes, std::span<float> x) const {
  const std::size_t channels = static_cast<std::size_t>(dim_);
  KVQ_ASSERT(x.size() % channels == 0);
  const std::size_t rows = x.size() / channels;
  if (bytes.size() != rows * row_bytes())
    fail(ErrorKind::Io, fmt::format("{} bytes for {} rows of {} bytes", bytes.size(), rows, row_bytes()));
  std::vector<std::uint8_t> codes(channels);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = bytes.subspan(row * row_bytes(), row_bytes());
    unpack_bits(from.subspan(2), bits_, codes);
    restore(get_half(from), codes, x.subspan(row * channels, channels));
  }
}

}  // namespace kvq
