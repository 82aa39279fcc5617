#include <kvq/quant/block_formats.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>

namespace kvq {

namespace {

constexpr float kLargestE4m3 = 448.0f;

bool is_finite_half(std::uint16_t half) { return (half & 0x7fffu) < 0x7c00u; }

bool encode_q4_0(std::span<const float> block, std::uint8_t* codes, std::uint16_t& scale) {
  float largest = 0.0f;
  for (const float x : block) {
    if (std::abs(x) > std::abs(largest)) largest = x;
  }
  const float d = largest / -8.0f;
  const float inverse = inverse_of(d);
  scale = float_to_half(d);
  for (const float x : block) {
    const float product = x * inverse;  // a step of its own: no FMA with the 8.5
    *codes++ = static_cast<std::uint8_t>(std::clamp(std::trunc(product + 8.5f), 0.0f, 15.0f));
  }
  return is_finite_half(scale);
}

bool encode_q8_0(std::span<const float> block, std::uint8_t* codes, std::uint16_t& scale) {
  float largest = 0.0f;
  for (const float x : block) largest = std::max(largest, std::abs(x));
  const float d = largest / 127.0f;
  const float inverse = inverse_of(d);
  scale = float_to_half(d);
  for (const float x : block) *codes++ = static_cast<std::uint8_t>(std::round(x * inverse) + 128.0f);
  return is_finite_half(scale);
}

/// sign, 4 bits of exponent (bias 7), 3 of fraction.
std::uint8_t e4m3_code(float x) {
  const float rounded = round_to_e4m3(x), magnitude = std::abs(rounded);
  int code = 0;
  if (magnitude < std::ldexp(1.0f, -6)) {
    code = static_cast<int>(std::ldexp(magnitude, 9));  // no leading one
  } else {
    const int exponent = std::ilogb(magnitude);
    code = (exponent + 7) * 8 + static_cast<int>(std::ldexp(magnitude, 3 - exponent)) - 8;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(rounded) ? 0x80 : 0));
}

std::vector<float> make_levels(CodebookKind kind) {
  std::vector<float> levels;
  for (int code = 0; code < (kind == CodebookKind::Q4_0 ? 16 : 256); ++code) {
    if (kind == CodebookKind::Q4_0) {
      levels.push_back(static_cast<float>(code - 8));
    } else if (kind == CodebookKind::Q8_0) {
      levels.push_back(static_cast<float>(code - 128));
    } else {
      const int exponent = code / 8 % 16, fraction = code % 8;
      const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                            : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
      levels.push_back(code % 128 == 127 ? 0.0f : std::copysign(magnitude, code < 128 ? 1.0f : -1.0f));  // 127: NaN
    }
  }
  return levels;
}

}  // namespace

float round_to_e4m3(float x) {
  const float magnitude = std::min(std::abs(x), kLargestE4m3);
  // Three bits of fraction; below 2^-6 the spacing stays at 2^-9.
  const int exponent = magnitude > 0.0f ? std::max(std::ilogb(magnitude), -6) : -6;
  const float spacing = std::ldexp(1.0f, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / spacing) * spacing, x);
}

void check_block_width(CodebookKind kind, int head_dim) {
  const bool blocks = kind == CodebookKind::Q4_0 || kind == CodebookKind::Q8_0;
  if (!blocks || head_dim % kBlockFormatChannels == 0) return;
  fail(ErrorKind::Usage, fmt::format("{} has blocks of {} channels; heads of {} cannot be cut into them",
                                     word_of(kCodebookWords, kind), kBlockFormatChannels, head_dim));
}

bool encode_blocks(CodebookKind kind, std::span<const float> x, std::uint8_t* codes, std::uint16_t* scales) {
  if (kind == CodebookKind::Fp8) {
    for (const float value : x) *codes++ = e4m3_code(value);
    return true;
  }
  KVQ_ASSERT(x.size() % kBlockFormatChannels == 0);
  for (std::size_t first = 0; first < x.size(); first += kBlockFormatChannels, codes += kBlockFormatChannels) {
    const auto block = x.subspan(first, kBlockFormatChannels);
    std::uint16_t& scale = *scales++;
    if (!(kind == CodebookKind::Q4_0 ? encode_q4_0(block, codes, scale) : encode_q8_0(block, codes, scale)))
      return false;
  }
  return true;
}

const std::vector<float>& block_levels(CodebookKind kind) {
  static const std::vector<float> q4_0 = make_levels(CodebookKind::Q4_0), q8_0 = make_levels(CodebookKind::Q8_0),
                                  fp8 = make_levels(CodebookKind::Fp8);
  KVQ_ASSERT(is_block_format(kind));
  return kind == CodebookKind::Q4_0 ? q4_0 : kind == CodebookKind::Q8_0 ? q8_0 : fp8;
}

bool block_round_trip(CodebookKind kind, std::span<float> x) {
  std::vector<std::uint8_t> codes(x.size());
  std::vector<std::uint16_t> scales(x.size() / kBlockFormatChannels);
  if (!encode_blocks(kind, x, codes.data(), scales.data())) return false;
  const std::vector<float>& levels = block_levels(kind);
  for (std::size_t index = 0; index < x.size(); ++index) {
    const float scale = kind == CodebookKind::Fp8 ? 1.0f : half_to_float(scales[index / kBlockFormatChannels]);
    x[index] = levels[codes[index]] * scale;
  }
  return true;
}

float largest_of_block(CodebookKind kind) { return kHalfMax * (kind == CodebookKind::Q4_0 ? 8.0f : 127.0f); }

}  // namespace kvq
