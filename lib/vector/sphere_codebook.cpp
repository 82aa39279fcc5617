#include <kvq/vector/sphere_codebook.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <tuple>
#include <vector>

#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr int kNodes = 20;
constexpr int kLloydSteps = 40, kNewtonSteps = 60;
constexpr double kResidual = 2e-14;  ///< of a level, relative; where Newton's method stops

/// Gauss–Legendre nodes and weights on [-1, 1]: exact for polynomials of degree 2 · kNodes - 1.
struct GaussLegendre {
  std::array<double, kNodes> node{}, weight{};
  GaussLegendre() {
    for (int index = 0; index < kNodes; ++index) {
      double x = std::cos(std::numbers::pi * (index + 0.75) / (kNodes + 0.5)), slope = 1;
      for (int step = 0; step < 100; ++step) {
        double previous = 1, value = x;  // P_0, P_1
        for (int n = 2; n <= kNodes; ++n) {
          const double next = ((2 * n - 1) * x * value - (n - 1) * previous) / n;
          previous = value, value = next;
        }
        slope = kNodes * (x * value - previous) / (x * x - 1);
        const double change = value / slope;
        x -= change;
        if (std::abs(change) < 1e-16) break;
      }
      node[static_cast<std::size_t>(index)] = x;
      weight[static_cast<std::size_t>(index)] = 2 / ((1 - x * x) * slope * slope);
    }
  }
};

/// The density over a coordinate u in which it is smooth to its ends: t = sin u with weight cos^(d-2) u for the
/// sphere, whose density in t is singular at ±1 for even d; t = u for the normal distribution, here of deviation 1.
class Density {
 public:
  Density(Marginal marginal, int dim) : sphere_(marginal == Marginal::Sphere), power_(dim - 2) {
    panel_ = sphere_ ? 1.0 / std::sqrt(static_cast<double>(dim)) : 1.0;
  }

  double end() const { return sphere_ ? 1.0 : 40.0; }  ///< in t; behind 40 deviations a double holds nothing
  double coordinate(double t) const { return sphere_ ? std::asin(std::min(t, 1.0)) : t; }
  double value(double u) const { return sphere_ ? std::sin(u) : u; }
  /// log of the weight of du.
  double log_weight(double u) const { return sphere_ ? power_ * std::log(std::cos(u)) : -0.5 * u * u; }
  /// log of the density of dt.
  double log_density(double u) const { return sphere_ ? (power_ - 1) * std::log(std::cos(u)) : -0.5 * u * u; }
  /// t(u) - t(from) without cancellation.
  double offset(double u, double from) const {
    return sphere_ ? 2 * std::cos(0.5 * (u + from)) * std::sin(0.5 * (u - from)) : u - from;
  }

  /// Calls visit(u, weight) over [a, b], weights divided by e^reference.
  template <class Visit>
  void integrate(double a, double b, double reference, Visit visit) const {
    static const GaussLegendre rule;
    const int panels = std::max(1, static_cast<int>(std::ceil((b - a) / panel_)));
    const double half = 0.5 * (b - a) / panels;
    for (int panel = 0; panel < panels; ++panel) {
      const double middle = a + (2 * panel + 1) * half;
      // Weights fall from 0 on: what is below 1e-50 of the first is lost in rounding.
      if (log_weight(middle - half) - reference < -115) break;
      for (std::size_t index = 0; index < kNodes; ++index) {
        const double u = middle + half * rule.node[index];
        visit(u, half * rule.weight[index] * std::exp(log_weight(u) - reference));
      }
    }
  }

 private:
  bool sphere_;
  double power_, panel_;
};

/// A cell [a, b] of t, a >= 0: its mean, and its mass over the density at both ends (0 at the far end of the last).
struct Cell {
  double mean, density_at_a, density_at_b;  ///< densities divided by the mass
};

Cell cell_of(const Density& density, double a, double b) {
  const double u = density.coordinate(a),
               v = b >= density.end() ? density.coordinate(density.end()) : density.coordinate(b);
  const double reference = density.log_weight(u);
  double mass = 0, moment = 0;
  density.integrate(u, v, reference, [&](double at, double weight) {
    mass += weight;
    moment += weight * density.offset(at, u);
  });
  return {a + moment / mass, std::exp(density.log_density(u) - reference) / mass,
          b >= density.end() ? 0.0 : std::exp(density.log_density(v) - reference) / mass};
}

/// The positive half of a symmetric codebook: levels and, between and around them, borders from 0 to the end.
class HalfCodebook {
 public:
  HalfCodebook(const Density& density, int count) : density_(density), levels_(static_cast<std::size_t>(count)) {
    companded();
    evaluate();
    for (int step = 0; step < kLloydSteps; ++step) {
      for (std::size_t index = 0; index < levels_.size(); ++index) levels_[index] = cells_[index].mean;
      evaluate();
    }
    // Lloyd's method alone needs thousands of steps for 256 levels; Newton's squares the residual in each.
    for (int step = 0; step < kNewtonSteps && residual_ > kResidual; ++step) {
      const std::vector<double> before = levels_;
      const double residual = residual_;
      newton();
      evaluate();
      if (residual_ >= residual) {  // rounding has the last word
        levels_ = before;
        break;
      }
    }
  }

  const std::vector<double>& levels() const { return levels_; }

 private:
  /// Panter and Dite's approximation: equal parts of the integral of f^(1/3).
  void companded() {
    constexpr int kSteps = 20000;
    const double last = density_.coordinate(std::min(density_.end(), 12.0)), width = last / kSteps;
    std::vector<double> sums = {0.0};
    for (int step = 0; step < kSteps; ++step) {
      const double u = (step + 0.5) * width;
      // f^(1/3) dt = f^(-2/3) (f dt)
      sums.push_back(sums.back() + std::exp(density_.log_weight(u) - 2.0 / 3.0 * density_.log_density(u)));
    }
    const auto count = static_cast<double>(levels_.size());
    for (std::size_t index = 0; index < levels_.size(); ++index) {
      const double wanted = (static_cast<double>(index) + 0.5) / count * sums.back();
      const auto at = std::lower_bound(sums.begin(), sums.end(), wanted) - sums.begin();
      levels_[index] = density_.value((static_cast<double>(at) - 0.5) * width);
    }
  }

  void evaluate() {
    cells_.clear();
    residual_ = 0;
    for (std::size_t index = 0; index < levels_.size(); ++index) {
      const double a = index == 0 ? 0.0 : 0.5 * (levels_[index - 1] + levels_[index]);
      const double b = index + 1 == levels_.size() ? density_.end() : 0.5 * (levels_[index] + levels_[index + 1]);
      cells_.push_back(cell_of(density_, a, b));
      residual_ = std::max(residual_, std::abs(levels_[index] - cells_[index].mean) / cells_[index].mean);
    }
  }

  /// One step on level - mean = 0, whose Jacobian is tridiagonal: a border moves with half of either level.
  void newton() {
    const std::size_t count = levels_.size();
    std::vector<double> upper(count), right(count);
    double lower_upper = 0, lower_right = 0;
    for (std::size_t index = 0; index < count; ++index) {
      const Cell& cell = cells_[index];
      const double a = index == 0 ? 0.0 : 0.5 * (levels_[index - 1] + levels_[index]);
      const double b = index + 1 == count ? 0.0 : 0.5 * (levels_[index] + levels_[index + 1]);
      const double by_a = index == 0 ? 0.0 : 0.5 * cell.density_at_a * (cell.mean - a);
      const double by_b = index + 1 == count ? 0.0 : 0.5 * cell.density_at_b * (b - cell.mean);
      // Thomas' algorithm on  -by_a · x[i-1] + (1 - by_a - by_b) · x[i] - by_b · x[i+1] = mean - level.
      const double pivot = 1 - by_a - by_b + by_a * lower_upper;
      upper[index] = lower_upper = -by_b / pivot;
      right[index] = lower_right = (cell.mean - levels_[index] + by_a * lower_right) / pivot;
    }
    for (std::size_t index = count; index-- > 0;) {
      if (index + 1 < count) right[index] -= upper[index] * right[index + 1];
    }
    for (std::size_t index = 0; index < count; ++index) levels_[index] += right[index];
    if (!std::is_sorted(levels_.begin(), levels_.end()) || levels_.front() <= 0 || levels_.back() >= density_.end()) {
      for (std::size_t index = 0; index < count; ++index) levels_[index] = cells_[index].mean;  // too far: Lloyd's step
    }
  }

  const Density& density_;
  std::vector<double> levels_;
  std::vector<Cell> cells_;
  double residual_ = 0;
};

std::vector<double> compute(Marginal marginal, int dim, int bits) {
  const Density density(marginal, dim);
  const std::vector<double> half = HalfCodebook(density, 1 << (bits - 1)).levels();
  const double scale = marginal == Marginal::Gauss ? 1.0 / std::sqrt(static_cast<double>(dim)) : 1.0;
  std::vector<double> levels;
  for (auto level = half.rbegin(); level != half.rend(); ++level) levels.push_back(-*level * scale);
  for (const double level : half) levels.push_back(level * scale);
  return levels;
}

}  // namespace

std::span<const double> marginal_codebook(Marginal marginal, int dim, int bits) {
  KVQ_ASSERT(dim >= 2 && bits >= 1 && bits <= 8);
  static std::mutex mutex;
  static std::map<std::tuple<Marginal, int, int>, std::vector<double>> known;  // nodes stay where they are
  const std::lock_guard lock(mutex);
  auto [entry, is_new] = known.try_emplace({marginal, dim, bits});
  if (is_new) entry->second = compute(marginal, dim, bits);
  return entry->second;
}

double marginal_error(Marginal marginal, int dim, std::span<const double> levels) {
  const Density density(marginal, dim);
  const double scale = marginal == Marginal::Gauss ? std::sqrt(static_cast<double>(dim)) : 1.0;
  double error = 0, mass = 0;
  // Both halves of the axis: levels need not be symmetric.
  for (const double sign : {-1.0, 1.0}) {
    std::vector<double> own;  // levels as this half sees them, ascending
    for (const double level : levels) own.push_back(sign * level * scale);
    std::sort(own.begin(), own.end());
    double a = 0;
    for (std::size_t index = 0; index < own.size() && a < density.end(); ++index) {
      const double b =
          index + 1 == own.size() ? density.end() : std::min(0.5 * (own[index] + own[index + 1]), density.end());
      if (b <= a) continue;
      density.integrate(density.coordinate(a), density.coordinate(b), 0.0, [&](double u, double weight) {
        const double distance = density.value(u) - own[index];
        mass += weight;
        error += weight * distance * distance;
      });
      a = b;
    }
  }
  return error / mass / (scale * scale);
}

}  // namespace kvq
