#include <kvq/vector/low_rank_codec.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/leading_svd.h>
#include <kvq/vector/scalar_codec.h>

namespace kvq {

namespace {

/// Largest magnitude of a code; codes are stored with it added.
int factor_reach(int bits) { return (1 << (bits - 1)) - 1; }

/// Appends scale and codes of one factor.
void write_factor(std::span<const double> factor, double stretch, int bits, std::vector<std::byte>& out) {
  double largest = 0;
  for (const double value : factor) largest = std::max(largest, std::fabs(value * stretch));
  const std::uint16_t half = float_to_half(static_cast<float>(largest / factor_reach(bits)));
  if (half >= 0x7c00u)
    fail(ErrorKind::Numeric, fmt::format("low-rank correction: a factor of {:.6g} is beyond fp16", largest));
  const double scale = half_to_float(half);
  std::vector<std::uint8_t> codes;
  for (const double value : factor) {
    const double reach = factor_reach(bits);
    const double code = scale > 0 ? std::clamp(std::nearbyint(value * stretch / scale), -reach, reach) : 0.0;
    codes.push_back(static_cast<std::uint8_t>(code + reach));
  }
  put_half(half, out);
  pack_bits(codes, bits, out);
}

/// Adds the product of the two factors in `bytes` to `x`.
void add_factors(std::span<const std::byte> bytes, std::size_t rows, std::size_t channels, int bits,
                 std::span<float> x) {
  const auto read = [&](std::size_t count, std::vector<float>& factor) {
    const std::uint16_t half = get_half(bytes);
    if (half >= 0x7c00u) fail(ErrorKind::Io, fmt::format("low-rank correction: scale with fp16 bits {:#06x}", half));
    std::vector<std::uint8_t> codes(count);
    unpack_bits(bytes.subspan(2, packed_bytes(count, bits)), bits, codes);
    bytes = bytes.subspan(2 + packed_bytes(count, bits));
    for (const std::uint8_t code : codes) {
      if (code > 2 * factor_reach(bits)) fail(ErrorKind::Io, fmt::format("low-rank correction: code {}", code));
      factor.push_back(half_to_float(half) * static_cast<float>(code - factor_reach(bits)));
    }
  };
  std::vector<float> left, right;
  read(rows, left);
  read(channels, right);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t channel = 0; channel < channels; ++channel)
      x[row * channels + channel] += left[row] * right[channel];
  }
}

}  // namespace

LowRankCodec::LowRankCodec(std::shared_ptr<const VectorCodec> base, LowRankOptions options)
    : base_(std::move(base)), options_(options) {
  KVQ_ASSERT(options_.rank >= 1 && options_.factor_bits >= 2 && options_.factor_bits <= 8);
  KVQ_ASSERT(options_.page >= 1 && base_->block_rows() == 1);
  row_bytes_ = zero_block_bytes(*base_, 1);
}

std::size_t LowRankCodec::factor_bytes(std::size_t rows) const {
  const std::size_t channels = static_cast<std::size_t>(dim());
  return 4 + packed_bytes(rows, options_.factor_bits) + packed_bytes(channels, options_.factor_bits);
}

void LowRankCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  const std::size_t rows = static_cast<std::size_t>(check_rows(x, dim()));
  const std::size_t channels = static_cast<std::size_t>(dim()), page = static_cast<std::size_t>(options_.page);
  for (std::size_t first = 0; first < rows; first += page) {
    const std::size_t count = std::min(page, rows - first), begin = out.size();
    const auto values = x.subspan(first * channels, count * channels);
    try {
      base_->encode(values, out);
    } catch (const VectorOverflow& overflow) {
      throw overflow.moved(static_cast<std::int64_t>(first));
    }
    std::vector<float> decoded(values.size());
    KVQ_ASSERT(out.size() - begin == count * row_bytes_);
    base_->decode(std::span<const std::byte>(out).subspan(begin), decoded);
    std::vector<float> residual(values.size());
    for (std::size_t at = 0; at < values.size(); ++at) residual[at] = values[at] - decoded[at];
    const TruncatedSvd svd = leading_svd(residual, static_cast<int>(count), dim(), options_.rank);
    for (std::size_t k = 0; k < svd.values.size(); ++k) {
      const double stretch = std::sqrt(svd.values[k]);
      write_factor(std::span<const double>(svd.left).subspan(k * count, count), stretch, options_.factor_bits, out);
      write_factor(std::span<const double>(svd.right).subspan(k * channels, channels), stretch, options_.factor_bits,
                   out);
    }
  }
}

void LowRankCodec::decode(std::span<const std::byte> bytes, std::span<float> x) const {
  const std::size_t channels = static_cast<std::size_t>(dim()), page = static_cast<std::size_t>(options_.page);
  KVQ_ASSERT(x.size() % channels == 0);
  const std::size_t rows = x.size() / channels;
  std::size_t at = 0;
  for (std::size_t first = 0; first < rows; first += page) {
    const std::size_t count = std::min(page, rows - first);
    const std::size_t ranks = std::min({static_cast<std::size_t>(options_.rank), count, channels});
    const std::size_t base_bytes = count * row_bytes_;
    if (base_bytes + ranks * factor_bytes(count) > bytes.size() - at)
      fail(ErrorKind::Io,
           fmt::format("low-rank correction: {} bytes end within the page from row {} on", bytes.size(), first));
    const auto values = x.subspan(first * channels, count * channels);
    base_->decode(bytes.subspan(at, base_bytes), values);
    at += base_bytes;
    for (std::size_t k = 0; k < ranks; ++k) {
      add_factors(bytes.subspan(at, factor_bytes(count)), count, channels, options_.factor_bits, values);
      at += factor_bytes(count);
    }
  }
  if (at != bytes.size())
    fail(ErrorKind::Io, fmt::format("low-rank correction: {} bytes, {} rows take {}", bytes.size(), rows, at));
}

}  // namespace kvq
