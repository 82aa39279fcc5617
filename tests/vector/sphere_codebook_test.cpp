#include <cmath>
#include <numbers>
#include <thread>
#include <vector>

#include "support/catch.h"

#include <kvq/vector/sphere_codebook.h>

using namespace kvq;

namespace {

std::vector<double> levels_of(Marginal marginal, int dim, int bits) {
  const auto levels = marginal_codebook(marginal, dim, bits);
  return {levels.begin(), levels.end()};
}

/// Antiderivatives of the density of a coordinate on the sphere (unnormalised), for small d in closed form; even in d
/// by the angle: ∫ cos^n φ dφ from 0, n = d - 2.
double sphere_mass(int dim, double t) {
  const double phi = std::asin(t), c = std::cos(phi), s = t;
  double even = phi, odd = s;  // n = 0, 1
  for (int n = 2; n <= dim - 2; ++n) {
    double& term = n % 2 == 0 ? even : odd;
    term = (std::pow(c, n - 1) * s + (n - 1) * term) / n;
  }
  return dim % 2 == 0 ? even : odd;
}
/// ∫ t (1 - t²)^((d-3)/2) dt
double sphere_moment(int dim, double t) { return -std::pow(1 - t * t, 0.5 * (dim - 1)) / (dim - 1); }

double gauss_mass(double t) { return 0.5 * std::erf(t / std::numbers::sqrt2); }
double gauss_moment(double t) {
  return std::isinf(t) ? 0.0 : -std::exp(-0.5 * t * t) / std::sqrt(2 * std::numbers::pi);
}

}  // namespace

TEST_CASE("Levels for a normal variable are Max's (1960, table I)") {
  // J. Max, Quantizing for minimum distortion, IRE Trans. Inform. Theory 6 (1960), table I: output levels and error.
  // Its last digits are off for many levels; the next tests are exact.
  const struct {
    int bits;
    std::vector<double> levels;
    double error;
  } cases[] = {
      {1, {0.7980}, 0.3634},
      {2, {0.4528, 1.510}, 0.1175},
      {3, {0.2451, 0.7560, 1.344, 2.152}, 0.03454},
      {4, {0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}, 0.009497},
      {5,
       {0.06590, 0.1981, 0.3314, 0.4668, 0.6050, 0.7473, 0.8947, 1.049, 1.212, 1.387, 1.577, 1.788, 2.029, 2.319, 2.692,
        3.263},
       0.002499},
  };
  for (const int dim : {1 + 1, 64}) {
    for (const auto& known : cases) {
      const std::vector<double> levels = levels_of(Marginal::Gauss, dim, known.bits);
      REQUIRE(levels.size() == 2 * known.levels.size());
      for (std::size_t index = 0; index < known.levels.size(); ++index) {
        INFO("bits " << known.bits << ", level " << index);
        CHECK(levels[known.levels.size() + index] * std::sqrt(dim) == Approx(known.levels[index]).epsilon(1e-3));
      }
      CHECK(dim * marginal_error(Marginal::Gauss, dim, levels) == Approx(known.error).epsilon(3e-3));
    }
  }
}

TEST_CASE("In three dimensions a coordinate is uniform, and so are its levels") {
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<double> levels = levels_of(Marginal::Sphere, 3, bits);
    const int count = 1 << bits;
    REQUIRE(static_cast<int>(levels.size()) == count);
    for (int index = 0; index < count; ++index)
      CHECK(std::abs(levels[static_cast<std::size_t>(index)] - (2.0 * index + 1 - count) / count) < 1e-13);
    CHECK(marginal_error(Marginal::Sphere, 3, levels) == Approx(std::pow(4.0, -bits) / 3).epsilon(1e-12));
  }
}

TEST_CASE("One bit: the levels are the mean magnitude, whose closed form is known") {
  CHECK(levels_of(Marginal::Sphere, 2, 1)[1] == Approx(2 / std::numbers::pi).epsilon(1e-14));
  CHECK(levels_of(Marginal::Gauss, 1 + 3, 1)[1] == Approx(std::sqrt(2 / std::numbers::pi) / 2).epsilon(1e-14));
  for (const int dim : {2, 4, 5, 17, 64, 80, 128, 256, 1024}) {
    // E|t| = Γ(d/2) / (√π Γ((d+1)/2))
    const double mean = std::exp(std::lgamma(0.5 * dim) - std::lgamma(0.5 * (dim + 1))) / std::sqrt(std::numbers::pi);
    CHECK(levels_of(Marginal::Sphere, dim, 1)[1] == Approx(mean).epsilon(2e-12));  // lgamma near 1e3 keeps 13 digits
  }
}

TEST_CASE("Every level is the mean of its cell, by antiderivatives instead of quadrature") {
  for (const int dim : {2, 3, 4, 5, 8, 9, 64, 80, 128}) {
    for (int bits = 1; bits <= 8; ++bits) {
      const std::vector<double> levels = levels_of(Marginal::Sphere, dim, bits);
      const std::size_t count = levels.size();
      for (std::size_t index = count / 2; index < count; ++index) {
        const double a = 0.5 * (levels[index - 1] + levels[index]);
        const double b = index + 1 == count ? 1.0 : 0.5 * (levels[index] + levels[index + 1]);
        const double mass = sphere_mass(dim, b) - sphere_mass(dim, a);
        const double total = sphere_mass(dim, 1.0);
        const double mean = (sphere_moment(dim, b) - sphere_moment(dim, a)) / mass;
        INFO("d " << dim << ", bits " << bits << ", level " << index << " of " << count);
        // The differences here cancel: their own rounding is allowed for.
        CHECK(std::abs(levels[index] - mean) <= 1e-13 + 2e-15 * total / mass);
        CHECK(levels[index] == -levels[count - 1 - index]);
      }
    }
  }
  for (int bits = 1; bits <= 8; ++bits) {
    const std::vector<double> levels = levels_of(Marginal::Gauss, 4, bits);
    for (std::size_t index = levels.size() / 2; index < levels.size(); ++index) {
      const double a = levels[index - 1] + levels[index];  // half the sum of levels · √4
      const double b = index + 1 == levels.size() ? INFINITY : levels[index] + levels[index + 1];
      const double mass = gauss_mass(b) - gauss_mass(a);
      INFO("bits " << bits << ", level " << index);
      CHECK(std::abs(2 * levels[index] - (gauss_moment(b) - gauss_moment(a)) / mass) <= 1e-13 + 2e-15 / mass);
    }
  }
}

TEST_CASE("Levels and errors agree with an independent computation at 40 digits") {
  // scripts/reference/sphere_codebook.py: other integrals, other equations solver.
#include "sphere_reference.inc"
  for (const auto& known : kSphereReference) {
    const std::vector<double> levels =
        levels_of(known.gauss ? Marginal::Gauss : Marginal::Sphere, known.dim, known.bits);
    INFO("d " << known.dim << ", bits " << known.bits);
    REQUIRE(levels.size() == 2 * known.levels.size());
    for (std::size_t index = 0; index < known.levels.size(); ++index)
      CHECK(levels[known.levels.size() + index] == Approx(known.levels[index]).epsilon(1e-12));
    CHECK(marginal_error(Marginal::Sphere, known.dim, levels) == Approx(known.error).epsilon(1e-10));
  }
}

TEST_CASE("No other levels are better: a search on a fine grid finds no lower error") {
  // Dynamic programming over a histogram of 1500 cells of the angle, all partitions into intervals, also unsymmetric
  // ones: for d = 2 and 3 the density is not log-concave, so that a fixed point alone proves nothing.
  constexpr int kCells = 1500;
  for (const int dim : {2, 3, 16}) {
    std::vector<double> w(kCells + 1), wt(kCells + 1), wtt(kCells + 1);
    for (int cell = 0; cell < kCells; ++cell) {
      const double phi = ((cell + 0.5) / kCells - 0.5) * std::numbers::pi, t = std::sin(phi);
      const double weight = std::pow(std::cos(phi), dim - 2);
      w[cell + 1] = w[cell] + weight, wt[cell + 1] = wt[cell] + weight * t, wtt[cell + 1] = wtt[cell] + weight * t * t;
    }
    std::vector<double> best(kCells + 1, INFINITY);
    best[0] = 0;
    for (int level = 1; level <= 8; ++level) {
      std::vector<double> next(kCells + 1, INFINITY);
      for (int end = level; end <= kCells; ++end) {
        for (int begin = level - 1; begin < end; ++begin) {
          const double mass = w[end] - w[begin], sum = wt[end] - wt[begin];
          const double error = wtt[end] - wtt[begin] - (mass > 0 ? sum * sum / mass : 0);
          next[end] = std::min(next[end], best[begin] + error);
        }
      }
      best = next;
      if (level != 2 && level != 4 && level != 8) continue;
      const int bits = level == 2 ? 1 : level == 4 ? 2 : 3;
      const double ours = marginal_error(Marginal::Sphere, dim, levels_of(Marginal::Sphere, dim, bits));
      INFO("d " << dim << ", bits " << bits);
      CHECK(ours <= best[kCells] / w[kCells] * (1 + 1e-3));
    }
  }
}

TEST_CASE("Levels of the sphere tend to those of the normal distribution") {
  for (int bits = 1; bits <= 6; ++bits) {
    double before = INFINITY;
    for (const int dim : {8, 32, 128, 512, 2048}) {
      const std::vector<double> sphere = levels_of(Marginal::Sphere, dim, bits);
      const std::vector<double> gauss = levels_of(Marginal::Gauss, dim, bits);
      double distance = 0;
      for (std::size_t index = 0; index < sphere.size(); ++index)
        distance = std::max(distance, std::abs(sphere[index] - gauss[index]) * std::sqrt(dim));
      CHECK(distance < 0.35 * before);  // like 1 / d
      before = distance;
      // The exact levels are never worse for what they are made for.
      CHECK(marginal_error(Marginal::Sphere, dim, sphere) < marginal_error(Marginal::Sphere, dim, gauss));
    }
    CHECK(before < 8e-3);
  }
}

TEST_CASE("Threads that ask for the same levels get the same ones") {
  std::vector<std::span<const double>> seen(4);
  std::vector<std::thread> threads;
  for (std::size_t index = 0; index < seen.size(); ++index)
    threads.emplace_back([&seen, index] { seen[index] = marginal_codebook(Marginal::Sphere, 192, 7); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& levels : seen) CHECK(levels.data() == seen[0].data());
}
