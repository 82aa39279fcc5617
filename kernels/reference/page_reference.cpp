#include <kvq/kernels/reference/page_reference.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvq::reference {

namespace {

/// Bit `index` of a string of bits that begins with the lowest bit of its first byte.
int bit(const std::uint8_t* bytes, std::int64_t index) { return bytes[index / 8] >> (index % 8) & 1; }

/// Little-endian number of `bytes` bytes.
std::uint32_t number(const std::uint8_t* from, int bytes) {
  std::uint32_t result = 0;
  for (int byte = bytes - 1; byte >= 0; --byte) result = result * 256 + from[byte];
  return result;
}

/// Outliers of a page in the order in which they are stored: from the page, then from its chain of overflow blocks.
class OutlierList {
 public:
  OutlierList(const std::uint8_t* page, const Side& side, const OverflowBlocks& overflow)
      : side_(side),
        overflow_(overflow),
        values_(page + side.parts.outlier_values),
        channels_(page + side.parts.outlier_channels),
        link_(page + side.parts.overflow_link),
        left_(side.shape.page_entries()) {}

  struct Entry {
    int channel;
    double value;
  };
  Entry next() {
    if (left_ == 0) {
      const layout::OverflowBlock block = layout::overflow_block(side_.shape);
      const std::uint8_t* bytes = overflow_(number(link_, layout::kOverflowLinkBytes));
      values_ = bytes;
      channels_ = bytes + block.channels;
      link_ = bytes + block.link;
      left_ = layout::kOutlierBlockEntries;
    }
    const int channel_bytes = side_.shape.channel_bytes();
    const Entry entry{static_cast<int>(number(channels_, channel_bytes)),
                      std::ldexp(half_value(static_cast<std::uint16_t>(number(values_, 2))), side_.exponent)};
    values_ += 2;
    channels_ += channel_bytes;
    --left_;
    return entry;
  }

 private:
  const Side& side_;
  const OverflowBlocks& overflow_;
  const std::uint8_t *values_, *channels_, *link_;
  std::int64_t left_;
};

double half_at(const std::uint8_t* from, int exponent) {
  return std::ldexp(half_value(static_cast<std::uint16_t>(number(from, 2))), exponent);
}

}  // namespace

double half_value(std::uint16_t half) {
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double sign = half >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

std::vector<double> decode_page(const std::uint8_t* page, const Side& side, int tokens,
                                const OverflowBlocks& overflow) {
  const layout::SideShape& shape = side.shape;
  const int width = shape.width(), levels = 1 << shape.bits;
  const bool book_per_head = static_cast<int>(side.decoded.size()) == shape.kv_heads * levels && shape.kv_heads > 1;
  std::vector<double> x(static_cast<std::size_t>(tokens) * width);
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < width; ++channel) {
      const std::uint8_t* row = page + side.parts.codes + channel * shape.row_bytes();
      int code = 0;
      for (int place = shape.bits - 1; place >= 0; --place) code = 2 * code + bit(row, token * shape.bits + place);
      const double level = side.decoded[(book_per_head ? channel / shape.head_dim : 0) * levels + code];
      double zero = 0, scale = 0;
      if (shape.token_ranges) {
        const std::uint8_t* range = page + side.parts.ranges + 4 * token;
        zero = half_at(range, side.exponent), scale = half_at(range + 2, side.exponent);
      } else {
        zero = side.zero[channel], scale = side.scale[channel];
      }
      x[static_cast<std::size_t>(token) * width + channel] = zero + scale * level;
    }
  }
  if (shape.page_entries() == 0 && !shape.varying_outliers) return x;

  OutlierList list(page, side, overflow);
  const int heads = layout::outlier_group_heads(shape.head_dim);
  const int groups = shape.varying_outliers ? layout::outlier_groups(shape.kv_heads, shape.head_dim) : 1;
  const int count_bytes = layout::outlier_count_bytes(shape.head_dim);
  for (int token = 0; token < tokens; ++token) {
    for (int group = 0; group < groups; ++group) {
      const int count =
          shape.varying_outliers
              ? static_cast<int>(
                    number(page + side.parts.outlier_counts + (token * groups + group) * count_bytes, count_bytes))
              : shape.entries_per_token();
      for (int entry = 0; entry < count; ++entry) {
        const auto [channel, value] = list.next();
        x[static_cast<std::size_t>(token) * width + group * heads * shape.head_dim + channel] = value;
      }
    }
  }
  return x;
}

std::vector<double> decode_pages(std::span<const std::uint8_t* const> pages, const Side& side, std::int64_t tokens,
                                 std::span<const std::uint16_t> exact, const OverflowBlocks& overflow) {
  std::vector<double> x;
  for (std::size_t page = 0; page < pages.size(); ++page) {
    const std::int64_t left = tokens - static_cast<std::int64_t>(page) * layout::kPageTokens;
    const int here = static_cast<int>(std::min<std::int64_t>(left, layout::kPageTokens));
    const std::vector<double> part = decode_page(pages[page], side, here, overflow);
    x.insert(x.end(), part.begin(), part.end());
  }
  for (std::size_t i = 0; i < std::min(exact.size(), x.size()); ++i)
    x[i] = std::ldexp(half_value(exact[i]), side.exponent);
  return x;
}

}  // namespace kvq::reference
