// The encoder against the definitions in its header, written again here the slow way: outliers by sorting, codes by the
// distance to every centroid.
#include <kvq/quant/encoder.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "support/catch.h"

#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/stats/quantile.h>

using namespace kvq;

namespace {

SideQuantizer make_side(const std::string& recipe, Side side, int kv_heads, int head_dim) {
  SideQuantizer quantizer;
  quantizer.recipe = parse_recipe(recipe).side(side);
  quantizer.kv_heads = kv_heads, quantizer.head_dim = head_dim;
  const int bits = quantizer.recipe.bits;
  for (int head = 0; head < (quantizer.recipe.share == Share::Head ? kv_heads : 1); ++head) {
    Codebook codebook =
        quantizer.recipe.codebook == CodebookKind::Nf ? normal_float_codebook(bits) : uniform_codebook(bits);
    for (float& value : codebook.centroids) value = value * (1.0f - 0.1f * static_cast<float>(head));
    codebook.decoded = codebook.centroids;
    if (quantizer.recipe.qnorm) {
      for (float& value : codebook.decoded) value = 1.03f * value + 0.01f;
    }
    quantizer.codebooks.push_back(codebook);
  }
  return quantizer;
}

std::vector<float> random_values(std::int64_t count, Rng& rng) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    double sum = -6.0;  // roughly normal
    for (int draw = 0; draw < 12; ++draw) sum += rng.uniform();
    values.push_back(static_cast<float>(sum * (rng.below(50) == 0 ? 6.0 : 1.0)));
  }
  return values;
}

void set_thresholds(SideQuantizer& quantizer, const std::vector<float>& x) {
  const auto width = static_cast<std::size_t>(quantizer.width());
  for (std::size_t channel = 0; channel < width; ++channel) {
    std::vector<float> column;
    for (std::size_t i = channel; i < x.size(); i += width) column.push_back(x[i]);
    const QuantilePair pair = quantile_pair(column, 0.5 * quantizer.recipe.outliers);
    quantizer.lower.push_back(pair.lower);
    quantizer.upper.push_back(pair.upper);
  }
}

/// Stable order by value; `descending` for the largest first. Stable: ties to the lower channel.
std::vector<int> order_of(const std::vector<float>& row, const std::vector<bool>& taken, bool descending) {
  std::vector<int> order;
  for (int channel = 0; channel < static_cast<int>(row.size()); ++channel) {
    if (!taken[channel]) order.push_back(channel);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return descending ? row[a] > row[b] : row[a] < row[b]; });
  return order;
}

struct SlowToken {
  std::vector<bool> outlier;
  std::vector<int> code;
  std::vector<float> restored;
  std::vector<double> position;  ///< on the axis of the codebook
};

SlowToken encode_slowly(const SideQuantizer& quantizer, const std::vector<float>& row, int channel_limit = 1 << 30) {
  const SideRecipe& recipe = quantizer.recipe;
  const int width = quantizer.width();
  const auto half = [&](float value) {
    return std::ldexp(half_to_float(float_to_half(std::ldexp(value, -quantizer.exponent))), quantizer.exponent);
  };
  SlowToken result{std::vector<bool>(width), std::vector<int>(width), std::vector<float>(width),
                   std::vector<double>(width)};
  std::vector<float> zero(width), scale(width);
  if (recipe.axis == Axis::Token) {
    const int k = outliers_per_end(recipe.outliers, width);
    for (const bool descending : {true, false}) {
      const std::vector<int> order = order_of(row, result.outlier, descending);
      for (int taken = 0; taken < std::min<int>(k, static_cast<int>(order.size())); ++taken)
        result.outlier[order[taken]] = true;
    }
    float low = std::numeric_limits<float>::infinity(), high = -low;
    for (int channel = 0; channel < width; ++channel) {
      if (result.outlier[channel]) continue;
      low = std::min(low, row[channel]), high = std::max(high, row[channel]);
    }
    if (low <= high) {
      std::fill(zero.begin(), zero.end(), half(0.5f * low + 0.5f * high));
      std::fill(scale.begin(), scale.end(), half(std::max(high - zero[0], zero[0] - low)));
    }
  } else {
    std::vector<std::pair<float, int>> excess;
    for (int channel = 0; channel < width; ++channel) {
      zero[channel] = 0.5f * quantizer.lower[channel] + 0.5f * quantizer.upper[channel];
      scale[channel] = 0.5f * quantizer.upper[channel] - 0.5f * quantizer.lower[channel];
      const float beyond = std::max(quantizer.lower[channel] - row[channel], row[channel] - quantizer.upper[channel]);
      if (recipe.outliers > 0 && beyond > 0) {
        excess.emplace_back(scale[channel] > 0 ? -beyond / scale[channel] : -std::numeric_limits<float>::infinity(),
                            channel);
      }
    }
    std::sort(excess.begin(), excess.end());
    for (std::size_t i = 0; i < excess.size() && static_cast<int>(i) < channel_limit; ++i)
      result.outlier[excess[i].second] = true;
  }
  for (int channel = 0; channel < width; ++channel) {
    if (result.outlier[channel]) {
      result.restored[channel] = half(row[channel]);
      continue;
    }
    const Codebook& codebook = quantizer.codebook_of_head(channel / quantizer.head_dim);
    const double position =
        scale[channel] > 0 ? (row[channel] - zero[channel]) / static_cast<double>(scale[channel]) : 0.0;
    result.position[channel] = position;
    int best = 0;
    for (int level = 1; level < codebook.levels(); ++level) {
      if (std::abs(position - codebook.centroids[level]) < std::abs(position - codebook.centroids[best])) best = level;
    }
    result.code[channel] = best;
    result.restored[channel] = zero[channel] + scale[channel] * codebook.decoded[best];
  }
  return result;
}

/// Encodes, compares with the slow way, and returns the restored values.
std::vector<float> check_against_slow(const SideQuantizer& quantizer, const std::vector<float>& x,
                                      int channel_limit = 1 << 30) {
  const SideEncoder encoder(quantizer);
  EncodedTokens encoded;
  encoder.encode(x, encoded);
  std::vector<float> restored(x.size());
  encoder.decode(encoded, restored);
  const int width = quantizer.width();
  const auto tokens = static_cast<std::int64_t>(x.size()) / width;
  REQUIRE(encoded.tokens == tokens);
  REQUIRE(encoded.outlier_begin.size() == static_cast<std::size_t>(tokens) + 1);
  for (std::int64_t token = 0; token < tokens; ++token) {
    const std::vector<float> row(x.begin() + token * width, x.begin() + (token + 1) * width);
    const SlowToken slow = encode_slowly(quantizer, row, channel_limit);
    std::vector<bool> outlier(width);
    int previous = -1;
    for (std::uint32_t entry = encoded.outlier_begin[token]; entry < encoded.outlier_begin[token + 1]; ++entry) {
      REQUIRE(encoded.outlier_channel[entry] > previous);
      previous = encoded.outlier_channel[entry];
      outlier[previous] = true;
      REQUIRE(encoded.codes[token * width + previous] == 0);
    }
    REQUIRE(outlier == slow.outlier);
    for (int channel = 0; channel < width; ++channel) {
      const std::int64_t at = token * width + channel;
      const bool same =
          std::abs(restored[at] - slow.restored[channel]) <= 1e-6f * std::abs(slow.restored[channel]) + 1e-30f;
      if (same) continue;
      // The slow way divides in double: where a value lies on a boundary up to fp32 rounding, the neighbour is as
      // right.
      const std::vector<float>& levels = quantizer.codebook_of_head(channel / quantizer.head_dim).centroids;
      const double position = slow.position[channel];
      const double ours = std::abs(position - levels[encoded.codes[at]]);
      REQUIRE(std::abs(ours - std::abs(position - levels[slow.code[channel]])) < 1e-6 * (1.0 + std::abs(position)));
    }
  }
  return restored;
}

}  // namespace

TEST_CASE("Keys per channel are the nearest centroid inside the thresholds and exact outside") {
  Rng rng(1);
  for (const std::string recipe : {"int3-1%", "nf4-2%", "nuq2-1%:share=head", "nuq4-1%:qnorm", "int8-0.5%", "int5",
                                   "int1-5%", "nf6-1%", "nuq7:share=head"}) {
    INFO(recipe);
    SideQuantizer quantizer = make_side(recipe, Side::Key, 3, 16);
    const std::vector<float> x = random_values(200LL * 48, rng);
    set_thresholds(quantizer, x);
    check_against_slow(quantizer, x);
  }
}

TEST_CASE("Values per token lose their extremes and span the rest") {
  Rng rng(2);
  for (const std::string recipe :
       {"int3-1%", "nf4-10%", "nuq2-30%:share=head", "nuq4:qnorm", "int8-49.9%", "int5-4%"}) {
    for (const auto& [kv_heads, head_dim] : std::vector<std::pair<int, int>>{{3, 16}, {1, 7}, {5, 80}, {2, 1}}) {
      INFO(recipe << " " << kv_heads << " x " << head_dim);
      SideQuantizer quantizer = make_side(recipe, Side::Value, kv_heads, head_dim);
      std::vector<float> x = random_values(100LL * kv_heads * head_dim, rng);
      check_against_slow(quantizer, x);
      for (float& value : x) value = std::round(value);  // ties everywhere
      check_against_slow(quantizer, x);
    }
  }
}

TEST_CASE("Plain int per token is numpy's asymmetric rounding") {
  // z = float16((min + max) / 2), s = float16(max(max - z, z - min)), round(((x - z) / s + 1) / 2 * (2^b - 1)), and
  // back
  const std::vector<float> x = {0.5f, -1.25f, 3.0f, 0.1f, -0.7f, 2.2f, 10.0f, 11.0f, 12.5f, 9.25f, 10.1f, 13.0f};
  const std::vector<std::pair<int, std::vector<float>>> expected = {
      {2, {0.16666663f, -1.25f, 3.0f, 0.16666663f, -1.25f, 1.5833334f, 10.5f, 10.5f, 13.0f, 9.25f, 10.5f, 13.0f}},
      {3,
       {0.57142854f, -1.25f, 3.0f, -0.03571427f, -0.6428572f, 2.392857f, 9.785714f, 10.857142f, 12.464286f, 9.25f,
        10.321428f, 13.0f}},
      {4, {0.45f, -1.25f, 3.0f, 0.16666666f, -0.6833334f, 2.15f, 10.0f, 11.0f, 12.5f, 9.25f, 10.0f, 13.0f}}};
  for (const auto& [bits, values] : expected) {
    const SideEncoder encoder(make_side("int" + std::to_string(bits), Side::Value, 2, 3));
    std::vector<float> restored = x;
    encoder.round_trip(restored, 1);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(restored[i] == Approx(values[i]).epsilon(1e-6).margin(1e-6));
  }
}

TEST_CASE("A value on a boundary takes the lower code") {
  SideQuantizer quantizer = make_side("int2", Side::Key, 1, 3);
  quantizer.codebooks[0] = {{-1.0f, -0.5f, 0.5f, 1.0f}, {-1.0f, -0.5f, 0.5f, 1.0f}};
  quantizer.lower = {-1.0f, -1.0f, -1.0f}, quantizer.upper = {1.0f, 1.0f, 1.0f};
  EncodedTokens encoded;
  SideEncoder(quantizer).encode(std::vector<float>{-0.75f, 0.0f, 0.75f}, encoded);
  CHECK(encoded.codes == std::vector<std::uint8_t>{0, 1, 2});
}

TEST_CASE("Equal values, zeros and tokens shorter than their outliers are defined") {
  const std::vector<float> x = {5,     5,    5,     5,    5, 5, 0,   0,   0,   0,   0,   0,
                                -0.0f, 0.0f, -0.0f, 0.0f, 0, 0, 100, 100, 100, 100, 100, 7};
  const SideQuantizer one = make_side("nf3-1%", Side::Value, 2, 3);
  CHECK(check_against_slow(one, x) == x);
  EncodedTokens encoded;
  SideEncoder(one).encode(x, encoded);
  CHECK(encoded.outliers() == 2 * 4);  // never more than 2k, whatever the ties
  CHECK(encoded.outlier_channel == std::vector<std::uint16_t>{0, 1, 0, 1, 0, 1, 0, 5});
  const SideQuantizer all = make_side("nf3-1%", Side::Value, 1, 2);
  SideEncoder(all).encode(std::vector<float>{3.0f, -4.0f}, encoded);
  CHECK(encoded.outliers() == 2);
  CHECK(encoded.token_range == std::vector<std::uint16_t>{0, 0});
}

TEST_CASE("Constant channels are restored, and what leaves them is an outlier") {
  for (const float constant : {100.0f, 0.0f, -1e-6f, 0.1f}) {
    SideQuantizer quantizer = make_side("nf2-1%", Side::Key, 1, 2);
    quantizer.lower = {constant, -1.0f}, quantizer.upper = {constant, 1.0f};
    std::vector<float> x = {constant, 0.5f, constant + 1.0f, 3.0f};
    std::vector<std::uint32_t> outliers(2);
    SideEncoder(quantizer).round_trip(x, 1, outliers);
    CHECK(x[0] == constant);
    CHECK(x[2] == half_to_float(float_to_half(constant + 1.0f)));
    CHECK(x[3] == 3.0f);
    CHECK(outliers == std::vector<std::uint32_t>{0, 2});
  }
  SideQuantizer clamped = make_side("int2", Side::Key, 1, 1);  // no outliers: the constant absorbs everything
  clamped.lower = clamped.upper = {100.0f};
  std::vector<float> x = {100.0f, 90.0f};
  SideEncoder(clamped).round_trip(x, 1);
  CHECK(x == std::vector<float>{100.0f, 100.0f});
}

TEST_CASE("Tiny and huge magnitudes survive with the exponent of their layer") {
  for (const float size : {1e-6f, 1.0f, 7e4f, 1e-30f, 1e30f}) {
    Rng rng(3);
    std::vector<float> x = random_values(50LL * 24, rng);
    for (float& value : x) value *= size / 8.0f;
    const float largest =
        *std::max_element(x.begin(), x.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
    for (const Side side : kSides) {
      SideQuantizer quantizer = make_side("int8-2%", side, 3, 8);
      quantizer.exponent = choose_exponent(std::abs(largest));
      if (side == Side::Key) set_thresholds(quantizer, x);
      const std::vector<float> restored = check_against_slow(quantizer, x);
      for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(restored[i] - x[i]) < size * 0.02f);
      std::vector<float> exact = x;
      SideEncoder(quantizer).round_exact(exact);
      for (std::size_t i = 0; i < x.size(); ++i)
        REQUIRE(std::abs(exact[i] - x[i]) <= std::abs(x[i]) * 0x1p-11f + size * 1e-6f);
    }
  }
}

TEST_CASE("A scale whose inverse is infinite restores the centre, not NaN") {
  SideQuantizer quantizer = make_side("int4", Side::Key, 1, 1);
  quantizer.lower = {0.0f}, quantizer.upper = {1e-44f};
  std::vector<float> x = {0.0f, 5e-45f, 1.0f};
  SideEncoder(quantizer).round_trip(x, 1);
  for (const float value : x) CHECK(std::abs(value) <= 1e-44f);
}

TEST_CASE("What does not fit the exact form is refused with its place") {
  const SideQuantizer quantizer = make_side("int4-1%", Side::Value, 2, 4);
  std::vector<float> x(150 * 8, 1.0f);
  x[130 * 8 + 5] = -7e4f;
  try {
    std::vector<float> copy = x;
    SideEncoder(quantizer).round_trip(copy, 1);
    FAIL("accepted");
  } catch (const ExactOverflow& overflow) {
    CHECK(overflow.kind() == ErrorKind::Numeric);
    CHECK(overflow.token == 130);
    CHECK(overflow.channel == 5);
    CHECK(overflow.value == -7e4f);
  }
  const SideEncoder no_outliers(make_side("int4", Side::Value, 2, 4));
  try {
    std::vector<float> copy = x;
    copy[130 * 8 + 5] = 3e5f;  // the range of the token
    no_outliers.round_trip(copy, 2);
    FAIL("accepted");
  } catch (const ExactOverflow& overflow) {
    CHECK(overflow.token == 130);
    CHECK(overflow.channel == 5);
  }
  CHECK_THROWS_AS(no_outliers.round_exact(x), ExactOverflow);
}

TEST_CASE("A cap keeps the largest excess in half-widths") {
  SideQuantizer quantizer = make_side("int2-1%:cap=20%", Side::Key, 1, 10);
  quantizer.lower.assign(10, -1.0f), quantizer.upper.assign(10, 1.0f);
  quantizer.lower[3] = -100.0f, quantizer.upper[3] = 100.0f;
  quantizer.lower[9] = quantizer.upper[9] = 2.0f;
  //                          4 half-widths   1  0.5             1 (tie)                infinite
  const std::vector<float> x = {5.0f, 0.0f, 2.0f, 150.0f, 0.5f, -2.0f, 0.0f, 0.0f, 0.0f, 2.5f};
  EncodedTokens encoded;
  SideEncoder(quantizer).encode(x, encoded);
  CHECK(encoded.outlier_channel == std::vector<std::uint16_t>{0, 9});
  CHECK(encoded.codes[2] == 3);
  CHECK(encoded.codes[5] == 0);
  quantizer.recipe.cap = 0.3;
  SideEncoder(quantizer).encode(x, encoded);
  CHECK(encoded.outlier_channel == std::vector<std::uint16_t>{0, 2, 9});
  Rng rng(4);
  SideQuantizer many = make_side("nf3-20%:cap=5%", Side::Key, 4, 20);
  const std::vector<float> y = random_values(300LL * 80, rng);
  set_thresholds(many, y);
  check_against_slow(many, y, outlier_cap(0.05, 80));
  CHECK(outlier_cap(0.05, 80) == 4);
  CHECK(outlier_cap(0.03, 100) == 3);
  CHECK(outlier_cap(0.01, 192) == 2);
  CHECK(outlier_cap(0.0, 192) == 192);
}

TEST_CASE("Outliers per end round half up and are never none by accident") {
  CHECK(outliers_per_end(0.0, 192) == 0);
  CHECK(outliers_per_end(0.01, 192) == 1);
  CHECK(outliers_per_end(0.001, 192) == 1);
  CHECK(outliers_per_end(0.01, 1024) == 5);
  CHECK(outliers_per_end(0.02, 192) == 2);
  CHECK(outliers_per_end(0.01, 4096) == 20);
}

TEST_CASE("The result depends neither on threads nor on how tokens are cut") {
  Rng rng(5);
  for (const Side side : kSides) {
    SideQuantizer quantizer = make_side("nf3-2%:sink=0", side, 3, 20);
    const std::vector<float> x = random_values(333LL * 60, rng);
    if (side == Side::Key) set_thresholds(quantizer, x);
    const SideEncoder encoder(quantizer);
    std::vector<float> whole = x, threaded = x, pieces = x;
    std::vector<std::uint32_t> whole_count(333), threaded_count(333), pieces_count(333);
    encoder.round_trip(whole, 1, whole_count);
    encoder.round_trip(threaded, 3, threaded_count);
    for (std::size_t first = 0, step = 1; first < 333; first += step, step = step % 7 + 1) {
      step = std::min(step, 333 - first);
      encoder.round_trip(std::span(pieces).subspan(first * 60, step * 60), 1,
                         std::span(pieces_count).subspan(first, step));
    }
    CHECK(whole == threaded);
    CHECK(whole == pieces);
    CHECK(whole_count == threaded_count);
    CHECK(whole_count == pieces_count);
    for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2}) {
      if (level > best_simd_level()) continue;
      std::vector<float> other = x;
      SideEncoder(quantizer, level).round_trip(other, 1);
      CHECK(other == whole);
    }
  }
}

TEST_CASE("The window's own range is the channel's percentiles over all its tokens") {
  Rng rng(6);
  const std::vector<float> x = random_values(150LL * 12, rng);
  for (const std::string recipe : {"int3:range=window", "nf3-4%:range=window"}) {
    const SideQuantizer oracle = make_side(recipe, Side::Key, 3, 4);
    SideQuantizer fitted = oracle;
    fitted.recipe.range = RangeKind::Static;
    set_thresholds(fitted, x);
    std::vector<float> by_window = x, by_thresholds = x;
    SideEncoder(oracle).round_trip(by_window, 2);
    SideEncoder(fitted).round_trip(by_thresholds, 1);
    CHECK(by_window == by_thresholds);
    EncodedTokens encoded;
    CHECK_THROWS_AS(SideEncoder(oracle).encode(x, encoded), Error);
  }
}

TEST_CASE("Quantizers whose parts do not fit are refused") {
  SideQuantizer quantizer = make_side("int3-1%", Side::Key, 2, 4);
  CHECK_THROWS_AS(SideEncoder(quantizer), Error);  // no thresholds
  quantizer.lower.assign(8, -1.0f), quantizer.upper.assign(8, 1.0f);
  CHECK_NOTHROW(SideEncoder(quantizer));
  SideQuantizer wrong = quantizer;
  wrong.codebooks.resize(3, quantizer.codebooks[0]);
  CHECK_THROWS_AS(SideEncoder(wrong), Error);
  wrong = quantizer;
  wrong.codebooks[0].decoded.pop_back();
  CHECK_THROWS_AS(SideEncoder(wrong), Error);
  wrong = quantizer;
  wrong.upper.pop_back();
  CHECK_THROWS_AS(SideEncoder(wrong), Error);
}
