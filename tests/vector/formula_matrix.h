#pragma once
// Matrices by the integer formula of scripts/reference/expected_vector.py, and by a seed.

#include <cmath>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvq/core/rng.h>
#include <kvq/vector/vector_codec.h>

namespace kvq::test {

/// `[rows, columns]`, about normal with deviation 0.67, multiples of 1/256 in [-2, 2].
inline std::vector<float> formula_matrix(int rows, int columns, std::uint32_t seed) {
  std::vector<float> result;
  for (int row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      std::uint32_t h =
          static_cast<std::uint32_t>(row) * 7919u + static_cast<std::uint32_t>(column) * 104729u + seed * 15485863u;
      int total = 0;
      for (int draw = 0; draw < 3; ++draw) {
        h = h * 1664525u + 1013904223u;
        total += static_cast<int>((h >> 8) % 341u);
      }
      result.push_back(static_cast<float>(total - 510) / 256.0f);
    }
  }
  return result;
}

inline nlohmann::json vector_golden(const char* part) {
  std::ifstream file(std::string(KVQ_SOURCE_DIR) + "/tests/golden/vector.json");
  return nlohmann::json::parse(file).at(part);
}

/// Independent standard normal values.
inline std::vector<float> gaussian(std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values;
  while (values.size() < count) {
    const double radius = std::sqrt(-2 * std::log(1 - rng.uniform())), angle = 6.283185307179586 * rng.uniform();
    values.push_back(static_cast<float>(radius * std::cos(angle)));
    values.push_back(static_cast<float>(radius * std::sin(angle)));
  }
  values.resize(count);
  return values;
}

/// x_t = rho x_{t-1} + sqrt(1 - rho²) noise, each channel by itself, variance 1.
inline std::vector<float> correlated(int rows, int dim, double rho, std::uint64_t seed) {
  std::vector<float> x = gaussian(static_cast<std::size_t>(rows) * static_cast<std::size_t>(dim), seed);
  const float keep = static_cast<float>(rho), fresh = static_cast<float>(std::sqrt(1 - rho * rho));
  for (std::size_t at = static_cast<std::size_t>(dim); at < x.size(); ++at)
    x[at] = keep * x[at - static_cast<std::size_t>(dim)] + fresh * x[at];
  return x;
}

inline double squared_error(std::span<const float> x, std::span<const float> y) {
  double sum = 0;
  for (std::size_t at = 0; at < x.size(); ++at) {
    const double difference = static_cast<double>(x[at]) - static_cast<double>(y[at]);
    sum += difference * difference;
  }
  return sum;
}

inline std::vector<std::byte> encoded(const VectorCodec& codec, std::span<const float> x) {
  std::vector<std::byte> bytes;
  codec.encode(x, bytes);
  return bytes;
}

inline std::vector<float> decoded(const VectorCodec& codec, std::span<const std::byte> bytes, std::size_t values) {
  std::vector<float> x(values);
  codec.decode(bytes, x);
  return x;
}

inline std::vector<float> restored(const VectorCodec& codec, std::span<const float> x) {
  return decoded(codec, encoded(codec, x), x.size());
}

}  // namespace kvq::test
