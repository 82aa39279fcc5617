#pragma once
// The only source of randomness: a seeded generator that is passed in. Same seed, same numbers, on every platform
// (the distributions of <random> differ between standard libraries, so they are not used).

#include <cstdint>
#include <random>

namespace kvq {

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t next() { return engine_(); }

  /// Uniform integer in [0, bound), without bias. `bound` > 0.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t reject_from = engine_.max() - engine_.max() % bound;
    std::uint64_t draw = next();
    while (draw >= reject_from) draw = next();
    return draw % bound;
  }

  /// Uniform in [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace kvq
