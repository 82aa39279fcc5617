#include <kvq/kernels/reference/page_reference.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

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

double half_at(const std::uint8_t* from, int exponent) {
  return std::ldexp(half_value(static_cast<std::uint16_t>(number(from, 2))), exponent);
}

int bits_of(int count) {
  int bits = 0;
  while (std::pow(2.0, bits) < count) ++bits;
  return bits;
}

/// `bits` bits from `first` on, the lowest one first.
int bits_at(const std::uint8_t* bytes, std::int64_t first, int bits) {
  int value = 0;
  for (int place = bits - 1; place >= 0; --place) value = 2 * value + bit(bytes, first + place);
  return value;
}

/// The code of a token: `codes` are those of the side.
int code_at(const std::uint8_t* codes, const Side& side, int channel, int token) {
  const layout::SideShape& shape = side.shape;
  const int head = channel / shape.head_dim;
  if (!side.widths.empty()) {  // rows one after the other, from the first channel of all
    std::int64_t first = 0;
    for (int before = 0; before < channel; ++before) first += 64 * side.widths[static_cast<std::size_t>(before)];
    const int bits = side.widths[static_cast<std::size_t>(channel)];
    return bits_at(codes, first + token * bits, bits);
  }
  if (side.levels == 0) return bits_at(codes, (std::int64_t{64} * channel + token) * shape.bits, shape.bits);
  const int three = bits_of(side.levels * side.levels * side.levels), one = bits_of(side.levels);
  const int row_bits = 21 * three + one;
  const int head_bytes = (shape.head_dim * row_bits + 7) / 8;
  const std::int64_t row = std::int64_t{8} * head * head_bytes + channel % shape.head_dim * row_bits;
  if (token == 63) return bits_at(codes, row + 21 * three, one);
  int together = bits_at(codes, row + token / 3 * three, three);
  for (int place = 0; place < token % 3; ++place) together /= side.levels;
  return together % side.levels;
}

double level_at(const std::uint8_t* codes, const Side& side, int channel, int token) {
  const auto code = static_cast<std::size_t>(code_at(codes, side, channel, token));
  if (!side.widths.empty()) return side.decoded_by_width[side.widths[static_cast<std::size_t>(channel)]].at(code);
  const int levels = side.levels != 0 ? side.levels : 1 << side.shape.bits;
  const bool book_per_head =
      static_cast<int>(side.decoded.size()) == side.shape.kv_heads * levels && side.shape.kv_heads > 1;
  return side.decoded.at(static_cast<std::size_t>((book_per_head ? channel / side.shape.head_dim : 0) * levels) + code);
}

/// Centre and half width of what a code of a channel and token spans.
std::pair<double, double> range_at(const std::uint8_t* page, const Side& side, int channel, int token) {
  const layout::SideShape& shape = side.shape;
  if (!shape.token_ranges && shape.group_tokens == 0)
    return {side.zero[static_cast<std::size_t>(channel)], side.scale[static_cast<std::size_t>(channel)]};
  const std::uint8_t* part = page + side.parts.ranges;
  const int of_set = shape.token_ranges ? shape.ranges : shape.width();
  const int sets = shape.token_ranges ? 64 : 64 / shape.group_tokens;
  const int range = shape.token_ranges ? token * of_set + (of_set > 1 ? channel / side.range_channels : 0)
                                       : token / shape.group_tokens * of_set + channel;
  if (shape.zero_bits == 16)
    return {half_at(part + 4 * range, side.exponent), half_at(part + 4 * range + 2, side.exponent)};
  const double step = half_at(part + 2 * range, side.exponent), most = (1 << shape.bits) - 1;
  const int point =
      bits_at(part, std::int64_t{16} * sets * of_set + std::int64_t{range} * shape.zero_bits, shape.zero_bits);
  return {(most / 2 - point) * step, most / 2 * step};
}

/// x' = x diag(a) H / sqrt(n) in blocks of n channels, undone: H is symmetric and H H = n.
void rotate_back(std::vector<double>& x, const Side& side) {
  const int head_dim = side.shape.head_dim;
  int block = 1;
  while (head_dim % (2 * block) == 0) block *= 2;
  const std::vector<double> rotated = x;
  for (std::size_t index = 0; index < x.size(); ++index) {
    const std::size_t first = index - index % head_dim % block;
    double sum = 0;
    for (int other = 0; other < block; ++other) {
      int common = other & static_cast<int>(index - first), sign = 1;
      for (; common != 0; common /= 2) sign = common % 2 ? -sign : sign;
      sum += sign * rotated[first + static_cast<std::size_t>(other)];
    }
    x[index] = sum / std::sqrt(block) / side.rotation_scale[index % side.rotation_scale.size()];
  }
}

/// Overwrites what codes say of outliers: entry by entry, each found from the start of the list.
void place_outliers(const std::uint8_t* page, const Side& side, int tokens, const OverflowBlocks& overflow,
                    std::vector<double>& x) {
  const layout::SideShape& shape = side.shape;
  const int width = shape.width(), count_bytes = shape.head_dim < 1024 ? 2 : 4;
  const int channel_bytes = shape.head_dim > 256 ? 2 : 1;
  const layout::OverflowBlock block = layout::overflow_block(shape);
  std::int64_t index = 0;
  const std::uint8_t* bytes = nullptr;  // of the overflow block that the entry is in
  for (int head = 0; head < shape.kv_heads; ++head) {
    const std::uint32_t count = number(page + side.parts.outlier_counts + head * count_bytes, count_bytes);
    for (std::uint32_t entry = 0; entry < count; ++entry, ++index) {
      const std::uint8_t *values = page + side.parts.outlier_values, *channels = page + side.parts.outlier_channels;
      const std::uint8_t* places = page + side.parts.outlier_tokens;
      std::int64_t at = index;
      if (index >= shape.page_entries()) {
        at = (index - shape.page_entries()) % 8;
        if (at == 0) {
          bytes = overflow(number(bytes == nullptr ? page + side.parts.overflow_link : bytes + block.link, 4));
        }
        values = bytes, channels = bytes + block.channels, places = bytes + block.tokens;
      }
      const int token = bits_at(places, 6 * at, 6);
      if (token >= tokens) continue;
      const auto channel = static_cast<int>(number(channels + at * channel_bytes, channel_bytes));
      x[static_cast<std::size_t>(token * width + head * shape.head_dim + channel)] =
          half_at(values + 2 * at, side.exponent);
    }
  }
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
  const int width = shape.width();
  std::vector<double> x(static_cast<std::size_t>(tokens) * width);
  for (int token = 0; token < tokens; ++token) {
    for (int channel = 0; channel < width; ++channel) {
      const double level = level_at(page + side.parts.codes, side, channel, token);
      const auto [zero, scale] = range_at(page, side, channel, token);
      x[static_cast<std::size_t>(token) * width + channel] = zero + scale * level;
    }
  }
  if (shape.has_outliers()) place_outliers(page, side, tokens, overflow, x);
  if (!side.rotation_scale.empty()) rotate_back(x, side);
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
