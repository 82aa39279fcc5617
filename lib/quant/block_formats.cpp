#include <kvq/quant/block_formats.h>

#include <algorithm>
#include <cmath>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

constexpr float kLargestE4m3 = 448.0f;

bool scale_to_half(float scale, float& stored) {
  stored = half_to_float(float_to_half(scale));
  return std::isfinite(stored);
}

bool round_trip_q4_0(std::span<float> block) {
  float largest = 0.0f;
  for (const float x : block) {
    if (std::abs(x) > std::abs(largest)) largest = x;
  }
  const float d = largest / -8.0f;
  const float inverse = inverse_of(d);
  float stored = 0.0f;
  if (!scale_to_half(d, stored)) return false;
  for (float& x : block) {
    const float product = x * inverse;  // a step of its own: no FMA with the 8.5
    const float code = std::clamp(std::trunc(product + 8.5f), 0.0f, 15.0f);
    x = (code - 8.0f) * stored;
  }
  return true;
}

bool round_trip_q8_0(std::span<float> block) {
  float largest = 0.0f;
  for (const float x : block) largest = std::max(largest, std::abs(x));
  const float d = largest / 127.0f;
  const float inverse = inverse_of(d);
  float stored = 0.0f;
  if (!scale_to_half(d, stored)) return false;
  for (float& x : block) x = std::round(x * inverse) * stored;
  return true;
}

}  // namespace

float round_to_e4m3(float x) {
  const float magnitude = std::min(std::abs(x), kLargestE4m3);
  // Three bits of fraction; below 2^-6 the spacing stays at 2^-9.
  const int exponent = magnitude > 0.0f ? std::max(std::ilogb(magnitude), -6) : -6;
  const float spacing = std::ldexp(1.0f, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / spacing) * spacing, x);
}

bool block_round_trip(CodebookKind kind, std::span<float> x) {
  if (kind == CodebookKind::Fp8) {
    for (float& value : x) value = round_to_e4m3(value);
    return true;
  }
  KVQ_ASSERT(x.size() % kBlockFormatChannels == 0);
  for (std::size_t first = 0; first < x.size(); first += kBlockFormatChannels) {
    const auto block = x.subspan(first, kBlockFormatChannels);
    if (!(kind == CodebookKind::Q4_0 ? round_trip_q4_0(block) : round_trip_q8_0(block))) return false;
  }
  return true;
}

}  // namespace kvq
