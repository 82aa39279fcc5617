// Rounding with feedback, widths per pair, grouped levels and rotation: against brute force, against plain rounding,
// and against themselves on other instruction sets and in other portions.
#include <kvq/quant/lane_encoder.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/fit/block_fisher.h>
#include <kvq/quant/encoder.h>

using namespace kvq;

namespace {

float normal(Rng& rng) {
  double sum = -6.0;
  for (int draw = 0; draw < 12; ++draw) sum += rng.uniform();
  return static_cast<float>(sum);
}

std::vector<float> normals(std::int64_t count, Rng& rng) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(normal(rng) * (rng.below(40) == 0 ? 5.0f : 1.0f));
  return values;
}

/// A Fisher matrix with strong correlations, as those of keys are.
std::vector<double> random_block(int dim, Rng& rng) {
  std::vector<double> block(static_cast<std::size_t>(dim * dim));
  for (int sample = 0; sample < dim + 2; ++sample) {
    std::vector<double> g;
    const double common = normal(rng);
    for (int channel = 0; channel < dim; ++channel) g.push_back(normal(rng) + 2.0 * common);
    for (int row = 0; row < dim; ++row)
      for (int column = 0; column < dim; ++column)
        block[static_cast<std::size_t>(row * dim + column)] += g[row] * g[column];
  }
  return block;
}

/// A quantizer whose tables fit its recipe, with made-up numbers.
SideQuantizer make_side(const std::string& recipe, Side side, int kv_heads, int head_dim, Rng& rng) {
  SideQuantizer quantizer;
  quantizer.recipe = parse_recipe(recipe).side(side);
  quantizer.kv_heads = kv_heads, quantizer.head_dim = head_dim;
  const int width = quantizer.width();
  std::vector<double> scales(static_cast<std::size_t>(head_dim), 1.0);
  if (quantizer.recipe.range == RangeKind::Static) {
    for (int channel = 0; channel < width; ++channel) {
      quantizer.lower.push_back(-1.5f - 0.01f * static_cast<float>(channel % 7));
      quantizer.upper.push_back(1.4f + 0.02f * static_cast<float>(channel % 5));
    }
  }
  if (quantizer.recipe.widths == Widths::Pair) {
    const std::vector<int> choices = width_choices(quantizer.recipe);
    for (const int bits : choices) quantizer.codebooks.push_back(uniform_levels(1 << bits));
    for (int channel = 0; channel < width; ++channel)
      quantizer.widths.push_back(choices[static_cast<std::size_t>(channel % (head_dim / 2)) % choices.size()]);
  } else {
    for (int head = 0; head < (quantizer.recipe.share == Share::Head ? kv_heads : 1); ++head) {
      quantizer.codebooks.push_back(uniform_levels(code_levels(quantizer.recipe)));
      for (float& value : quantizer.codebooks.back().decoded) value *= 1.0f - 0.1f * static_cast<float>(head);
      quantizer.codebooks.back().centroids = quantizer.codebooks.back().decoded;
    }
  }
  if (quantizer.recipe.rotation != Rotation::None) {
    for (int channel = 0; channel < width; ++channel)
      quantizer.rotation_scale.push_back(0.5f + static_cast<float>(rng.uniform()));
  }
  if (!quantizer.recipe.rounding.uses_blocks()) return quantizer;
  for (int head = 0; head < kv_heads; ++head) {
    const BlockFactor factor = factor_block(random_block(head_dim, rng), scales, quantizer.recipe.rounding.order, 0.01);
    FeedbackTables& tables = quantizer.feedback;
    tables.order.insert(tables.order.end(), factor.order.begin(), factor.order.end());
    tables.updates.insert(tables.updates.end(), factor.updates.begin(), factor.updates.end());
    tables.hessian.insert(tables.hessian.end(), factor.hessian.begin(), factor.hessian.end());
  }
  return quantizer;
}

double error_of(const SideQuantizer& quantizer, const float* x, const float* restored) {
  const int dim = quantizer.head_dim;
  double sum = 0;
  for (int row = 0; row < dim; ++row) {
    for (int column = 0; column < dim; ++column) {
      sum += static_cast<double>(x[row] - restored[row]) * (x[column] - restored[column]) *
             quantizer.feedback.hessian[static_cast<std::size_t>(row * dim + column)];
    }
  }
  return sum;
}

/// Least eᵀHe over all codes.
double best_error(const SideQuantizer& quantizer, const float* x) {
  const int dim = quantizer.head_dim, levels = quantizer.codebooks[0].levels();
  int combinations = 1;
  for (int channel = 0; channel < dim; ++channel) combinations *= levels;
  double least = INFINITY;
  std::vector<float> restored(static_cast<std::size_t>(dim));
  for (int combination = 0; combination < combinations; ++combination) {
    for (int channel = 0, rest = combination; channel < dim; ++channel, rest /= levels) {
      const float zero = 0.5f * quantizer.lower[channel] + 0.5f * quantizer.upper[channel];
      const float scale = 0.5f * quantizer.upper[channel] - 0.5f * quantizer.lower[channel];
      restored[channel] = zero + scale * quantizer.codebooks[0].decoded[rest % levels];
    }
    least = std::min(least, error_of(quantizer, x, restored.data()));
  }
  return least;
}

std::vector<float> restored_by(const SideQuantizer& quantizer, const std::vector<float>& x) {
  std::vector<float> restored = x;
  SideEncoder(quantizer).round_trip(restored, 1);
  return restored;
}

bool same(const EncodedTokens& a, const EncodedTokens& b) {
  return a.codes == b.codes && a.token_range == b.token_range && a.outlier_begin == b.outlier_begin &&
         a.outlier_channel == b.outlier_channel && a.outlier_value == b.outlier_value;
}

}  // namespace

TEST_CASE("Feedback comes between plain rounding and the best of all codes, and descent never makes it worse") {
  Rng rng(11);
  constexpr int kDim = 5, kTokens = 16;
  double plain_sum = 0, feedback_sum = 0, descended_sum = 0, best_sum = 0;
  for (int trial = 0; trial < 20; ++trial) {
    SideQuantizer quantizer = make_side("nuq2:feedback,icm=3,order=natural", Side::Key, 1, kDim, rng);
    std::vector<float> x = normals(kTokens * kDim, rng);
    for (float& value : x) value = std::clamp(value, -1.4f, 1.3f);
    const std::vector<float> descended = restored_by(quantizer, x);
    quantizer.recipe.rounding.icm = 0;
    const std::vector<float> fed_back = restored_by(quantizer, x);
    SideQuantizer nearest = quantizer;
    nearest.recipe.rounding = {};
    const std::vector<float> plain = restored_by(nearest, x);
    for (int token = 0; token < kTokens; ++token) {
      const float* row = x.data() + token * kDim;
      const double best = best_error(quantizer, row);
      const double with_feedback = error_of(quantizer, row, fed_back.data() + token * kDim);
      const double after_descent = error_of(quantizer, row, descended.data() + token * kDim);
      CAPTURE(trial, token, best);
      CHECK(with_feedback >= best * (1 - 1e-6));
      CHECK(after_descent >= best * (1 - 1e-6));
      CHECK(after_descent <= with_feedback * (1 + 1e-5) + 1e-6);
      plain_sum += error_of(quantizer, row, plain.data() + token * kDim);
      feedback_sum += with_feedback, descended_sum += after_descent, best_sum += best;
    }
  }
  CAPTURE(plain_sum, feedback_sum, descended_sum, best_sum);
  CHECK(feedback_sum < 0.6 * plain_sum);
  CHECK(descended_sum < feedback_sum);
  CHECK(descended_sum < 2.0 * best_sum);
}

TEST_CASE("With a diagonal Fisher matrix feedback and descent change nothing") {
  Rng rng(3);
  SideQuantizer quantizer = make_side("nuq3-4%:feedback,icm=2", Side::Key, 2, 12, rng);
  for (std::size_t i = 0; i < quantizer.feedback.hessian.size(); ++i) {
    const bool diagonal = i / 12 % 12 == i % 12;
    quantizer.feedback.hessian[i] = diagonal ? 0.5f + static_cast<float>(i % 3) : 0.0f;
    quantizer.feedback.updates[i] = 0.0f;
  }
  SideQuantizer plain = quantizer;
  plain.recipe.rounding = {};
  const std::vector<float> x = normals(37 * 24, rng);
  EncodedTokens with, without;
  SideEncoder(quantizer).encode(x, with);
  SideEncoder(plain).encode(x, without);
  CHECK(same(with, without));
}

TEST_CASE("Lane encoders give the same bits on every instruction set and in every portion") {
  Rng rng(5);
  struct Case {
    const char* recipe;
    Side side;
    int kv_heads, head_dim;
  };
  for (const Case& c :
       {Case{"kvq1.5", Side::Key, 3, 64}, Case{"kvq2", Side::Key, 2, 20}, Case{"kvq4", Side::Key, 2, 16},
        Case{"kvq1.5", Side::Value, 3, 64}, Case{"kvq2", Side::Value, 2, 24}, Case{"kvq3", Side::Value, 1, 16},
        Case{"kvq4", Side::Value, 2, 80}, Case{"nuq6-2%:feedback,icm=1", Side::Value, 2, 18},
        Case{"nuq2-5%:feedback,icm=2,cap=10%", Side::Key, 2, 10}, Case{"K=nuq2:widths=pair/V=nuq2", Side::Key, 2, 8},
        Case{"nuq8:icm=1", Side::Key, 1, 9}, Case{"nuq2-45%:feedback,share=head", Side::Value, 2, 4}}) {
    const std::string recipe = c.recipe;
    CAPTURE(recipe, side_name(c.side), c.head_dim);
    const SideQuantizer quantizer = make_side(recipe, c.side, c.kv_heads, c.head_dim, rng);
    const std::vector<float> x = normals(std::int64_t{45} * quantizer.width(), rng);
    EncodedTokens whole;
    SideEncoder(quantizer).encode(x, whole);
    std::vector<float> decoded(x.size());
    SideEncoder(quantizer).decode(whole, decoded);
    for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512}) {
      if (level > best_simd_level()) continue;
      EncodedTokens other;
      SideEncoder(quantizer, level).encode(x, other);
      CHECK(same(whole, other));
    }
    std::vector<float> in_parts = x;
    const auto width = static_cast<std::size_t>(quantizer.width());
    std::size_t begin = 0;
    for (const std::size_t tokens : {1, 7, 16, 20, 1}) {
      SideEncoder(quantizer).round_trip(std::span(in_parts).subspan(begin * width, tokens * width), 1);
      begin += tokens;
    }
    CHECK(in_parts == decoded);
  }
}

TEST_CASE("Tables that do not fit their recipe are refused by what is wrong") {
  Rng rng(9);
  const SideQuantizer good = make_side("kvq2", Side::Key, 2, 16, rng);
  const auto refusal = [](const SideQuantizer& quantizer) -> std::string {
    try {
      const SideEncoder encoder(quantizer);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Mismatch);
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal(good) == "accepted");
  SideQuantizer bad = good;
  bad.widths.pop_back();
  CHECK_THAT(refusal(bad), ContainsSubstring("31 numbers in its widths"));
  bad = good, bad.widths[3] = 7;
  CHECK_THAT(refusal(bad), ContainsSubstring("channel of 7 bits"));
  bad = good, bad.codebooks.pop_back();
  CHECK_THAT(refusal(bad), ContainsSubstring("list of codebooks"));
  bad = good, bad.feedback.order[1] = bad.feedback.order[0];
  CHECK_THAT(refusal(bad), ContainsSubstring("every channel of a head once"));
  bad = good, bad.feedback.updates.clear();
  CHECK_THAT(refusal(bad), ContainsSubstring("feedback matrix"));
  bad = good, bad.feedback.hessian[0] = 0.0f;
  CHECK_THAT(refusal(bad), ContainsSubstring("diagonal is not positive"));
  bad = make_side("kvq2", Side::Value, 2, 16, rng), bad.rotation_scale[5] = -1.0f;
  CHECK_THAT(refusal(bad), ContainsSubstring("rotation"));
}

TEST_CASE("A compensated outlier that overflows is named by token and channel") {
  Rng rng(4);
  SideQuantizer quantizer = make_side("nuq2-1%:feedback", Side::Key, 2, 8, rng);
  std::vector<float> x(20 * 16, 0.1f);
  x[18 * 16 + 11] = 1e6f;
  EncodedTokens encoded;
  try {
    SideEncoder(quantizer).encode(x, encoded);
    FAIL("accepted");
  } catch (const ExactOverflow& overflow) {
    CHECK(overflow.token == 18);
    CHECK(overflow.channel == 11);
  }
}
