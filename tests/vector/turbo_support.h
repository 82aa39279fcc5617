#pragma once
// Rows and round trips that the tests of turbo share.

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "support/catch.h"

#include <kvq/vector/turbo_codec.h>

namespace kvq::test {

inline std::vector<float> normal_rows(int dim, int rows, std::uint64_t seed) {
  Rng rng(seed);
  const std::vector<double> numbers =
      normal_numbers(rng, static_cast<std::size_t>(dim) * static_cast<std::size_t>(rows));
  return {numbers.begin(), numbers.end()};
}

inline TurboCodec codec_of(const TurboOptions& options, int bits, int dim, std::vector<std::int32_t> outliers = {},
                           int exponent = 0) {
  return {std::make_shared<const TurboTables>(make_turbo_tables(options, bits, dim)), std::move(outliers), exponent};
}

inline std::vector<float> round_trip(const TurboCodec& codec, const std::vector<float>& x) {
  std::vector<std::byte> bytes;
  codec.encode(x, bytes);
  REQUIRE(static_cast<std::int64_t>(bytes.size()) ==
          codec.row_bytes() * static_cast<std::int64_t>(x.size()) / codec.dim());
  std::vector<float> back(x.size());
  codec.decode(bytes, back);
  return back;
}

/// Mean of ‖x - x̂‖² / ‖x‖² over rows.
inline double relative_error(const std::vector<float>& x, const std::vector<float>& back, int dim) {
  double sum = 0;
  for (std::size_t row = 0; row < x.size(); row += static_cast<std::size_t>(dim)) {
    double error = 0, square = 0;
    for (std::size_t index = row; index < row + static_cast<std::size_t>(dim); ++index) {
      error += std::pow(static_cast<double>(x[index]) - back[index], 2);
      square += std::pow(static_cast<double>(x[index]), 2);
    }
    sum += error / square;
  }
  return sum * dim / static_cast<double>(x.size());
}

}  // namespace kvq::test
