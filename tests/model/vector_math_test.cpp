// The vector loops, every variant that this CPU can run, against the standard library in double.
#include <cmath>
#include <limits>
#include <vector>

#include "support/catch.h"

#include <kvq/core/rng.h>
#include <kvq/model/vector_math.h>

using namespace kvq;

namespace {

std::vector<float> numbers(std::int64_t count, double scale, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> result(count);
  for (float& value : result) value = static_cast<float>(scale * (2.0 * rng.uniform() - 1.0));
  return result;
}

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

TEST_CASE("Vector loops agree with plain arithmetic at every length around their widths") {
  for (const VectorMath& math : vector_math_variants()) {
    for (std::int64_t count : {1, 3, 4, 5, 8, 15, 16, 17, 64, 257, 4099}) {
      INFO(math.name << ", " << count << " numbers");
      const auto a = numbers(count, 8.0, 1), b = numbers(count, 2.0, 2), c = numbers(count, 1.0, 3);
      double squares = 0, triple = 0, exps = 0;
      float largest = a[0];
      for (float value : a) largest = std::max(largest, value);
      for (std::int64_t at = 0; at < count; ++at) {
        squares += static_cast<double>(a[at]) * a[at];
        triple += static_cast<double>(a[at]) * b[at] * c[at];
        exps += std::exp(static_cast<double>(a[at]) - largest);
      }
      CHECK(math.max(a.data(), count) == largest);
      CHECK(math.sum_squares(a.data(), count) == Approx(squares).epsilon(1e-6));
      CHECK(math.dot3(a.data(), b.data(), c.data(), count) == Approx(triple).margin(1e-5 * std::sqrt(count) * 16));
      CHECK(math.sum_exp(a.data(), count, largest) == Approx(exps).epsilon(1e-6));
      const double lse = largest + std::log(exps);
      double divergence = 0;
      for (std::int64_t at = 0; at < count; ++at) {
        divergence += std::exp(a[at] - lse) * (static_cast<double>(a[at]) - b[at] - 0.25);
      }
      CHECK(math.divergence(a.data(), b.data(), count, static_cast<float>(lse), 0.25f) ==
            Approx(divergence).epsilon(1e-5).margin(1e-6));

      std::vector<float> first(count), second(count), third(count), fourth(count), fifth(count), sixth(count),
          seventh(count), eighth(count), exp_values = a, scaled = a;
      CHECK(math.exp_in_place(exp_values.data(), count, largest) == math.sum_exp(a.data(), count, largest));
      math.scale(scaled.data(), count, 0.5f);
      math.scale_by(a.data(), b.data(), count, 3.0f, first.data());
      math.combine(a.data(), b.data(), c.data(), count, 2.0f, -1.5f, second.data());
      math.silu_times(a.data(), b.data(), count, third.data());
      math.silu_times_backward(a.data(), b.data(), c.data(), count, fourth.data(), fifth.data());
      math.gelu_times(a.data(), b.data(), count, sixth.data());
      math.gelu_times_backward(a.data(), b.data(), c.data(), count, seventh.data(), eighth.data());
      for (std::int64_t at = 0; at < count; ++at) {
        const double x = a[at], y = b[at], z = c[at], s = sigmoid(x);
        const auto near = [](double expected) { return Approx(expected).epsilon(1e-6).margin(1e-6); };
        CHECK(exp_values[at] == near(std::exp(x - largest)));
        CHECK(scaled[at] == 0.5f * a[at]);
        CHECK(first[at] == near(3.0 * x * y));
        CHECK(second[at] == near(2.0 * x * y - 1.5 * z));
        CHECK(third[at] == near(x * s * y));
        CHECK(fourth[at] == near(z * y * s * (1.0 + x * (1.0 - s))));
        CHECK(fifth[at] == near(z * x * s));
        const double inner = std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x), tanh = std::tanh(inner);
        const double slope = std::sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
        CHECK(sixth[at] == near(0.5 * x * (1.0 + tanh) * y));
        // 1 - s loses digits where s is close to 1, and the slope of the inside is large there.
        CHECK(seventh[at] == Approx(z * y * (0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)).margin(2e-5));
        CHECK(eighth[at] == near(z * 0.5 * x * (1.0 + tanh)));
      }
    }
  }
}

TEST_CASE("Vector loops: extremes of exp stay finite, NaN stays NaN, nothing beyond the end is touched") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const VectorMath& math : vector_math_variants()) {
    INFO(math.name);
    const std::vector<float> gate = {-1e30f, -200.0f, -88.0f, 0.0f, 88.0f, 200.0f, 1e30f, nan, 1.0f};
    const std::vector<float> ones(gate.size(), 1.0f);
    std::vector<float> out(gate.size() + 1, 42.0f);
    math.silu_times(gate.data(), ones.data(), static_cast<std::int64_t>(gate.size()), out.data());
    CHECK(std::abs(out[1]) < 1e-30f);
    CHECK(out[3] == 0.0f);
    CHECK(out[5] == 200.0f);
    CHECK(out[6] == 1e30f);
    CHECK(std::isnan(out[7]));
    CHECK(out.back() == 42.0f);
    math.gelu_times(gate.data(), ones.data(), static_cast<std::int64_t>(gate.size()), out.data());
    CHECK(std::abs(out[1]) < 1e-30f);
    CHECK(out[3] == 0.0f);
    CHECK(out[5] == 200.0f);
    CHECK(std::isnan(out[7]));
    CHECK(out.back() == 42.0f);
    CHECK(std::isnan(math.sum_exp(gate.data(), static_cast<std::int64_t>(gate.size()), 1e30f)));
  }
}
