// Hidden: what docs/claims.md says of turbo, and how fast it is. `test_vector "[.claims]"`, `test_vector "[.bench]"`.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numbers>
#include <string>
#include <vector>

#include "support/catch.h"
#include "vector/turbo_support.h"

#include <kvq/vector/orthogonal_loops.h>
#include <kvq/vector/turbo_codec.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Figures for docs/claims.md", "[.claims]") {
  constexpr int kRows = 20000;
  std::printf("mean squared error of random unit vectors, %d of them; bound (sqrt(3) pi / 2) 4^-b\n", kRows);
  std::printf("%4s %2s %9s %9s %9s %9s %9s %9s %9s\n", "d", "b", "bound", "levels", "random", "hadamard", "gauss",
              "qjl", "norm=fit");
  for (const int dim : {16, 64, 128}) {
    const std::vector<float> x = normal_rows(dim, kRows, 23);
    for (int bits = 1; bits <= 6; ++bits) {
      TurboOptions hadamard, gauss, qjl, fit;
      hadamard.hadamard = true, gauss.marginal = Marginal::Gauss, qjl.qjl = true, fit.norm = NormRule::Fit;
      std::printf("%4d %2d %9.6f %9.6f", dim, bits, std::sqrt(3.0) * std::numbers::pi / 2 * std::pow(4.0, -bits),
                  dim * marginal_error(Marginal::Sphere, dim, marginal_codebook(Marginal::Sphere, dim, bits)));
      for (const TurboOptions& options : {TurboOptions{}, hadamard, gauss, qjl, fit})
        std::printf(" %9.6f", relative_error(x, round_trip(codec_of(options, bits, dim), x), dim));
      std::printf("\n");
    }
  }
  std::printf("one-hot vectors, d = 64: each channel, 20 seeds\n%2s %9s %9s\n", "b", "random", "hadamard");
  for (int bits = 1; bits <= 6; ++bits) {
    std::vector<float> x(64 * 64, 0.0f);
    for (std::size_t row = 0; row < 64; ++row) x[row * 65] = 1.0f;
    std::printf("%2d", bits);
    for (const bool turned : {false, true}) {
      double error = 0;
      for (int seed = 0; seed < 20; ++seed) {
        TurboOptions options;
        options.hadamard = turned, options.seed = seed;
        error += relative_error(x, round_trip(codec_of(options, bits, 64), x), 64) / 20;
      }
      std::printf(" %9.6f", error);
    }
    std::printf("\n");
  }
  std::printf("sphere against normal levels, error under the sphere's density: gauss / sphere - 1\n%4s", "d");
  for (int bits = 1; bits <= 6; ++bits) std::printf(" %8d", bits);
  for (const int dim : {4, 8, 16, 32, 64, 128}) {
    std::printf("\n%4d", dim);
    for (int bits = 1; bits <= 6; ++bits) {
      const auto error = [&](Marginal marginal) {
        return marginal_error(Marginal::Sphere, dim, marginal_codebook(marginal, dim, bits));
      };
      std::printf(" %7.3f%%", 100 * (error(Marginal::Gauss) / error(Marginal::Sphere) - 1));
    }
  }
  std::printf("\n");
}

TEST_CASE("Time of a million 128-vectors", "[.bench]") {
  constexpr int kDim = 128, kRows = 1 << 16, kTimes = 16;
  const std::vector<float> x = normal_rows(kDim, kRows, 91);
  std::vector<float> y(x.size());
  const auto report = [&](const char* what, const auto& run) {
    const auto start = std::chrono::steady_clock::now();
    for (int time = 0; time < kTimes; ++time) run();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::printf("%-28s %.3f s for %d rows, %.2f GB/s\n", what, seconds, kRows * kTimes,
                2.0 * sizeof(float) * kDim * kRows * kTimes / seconds * 1e-9);
  };
  report("memcpy", [&] { std::memcpy(y.data(), x.data(), x.size() * sizeof(float)); });
  const OrthogonalTransform hadamard = OrthogonalTransform::hadamard(kDim, 1),
                            random = OrthogonalTransform::random(kDim, 1);
  report("hadamard", [&] { hadamard.forward(x, y); });
  report("random", [&] { random.forward(x, y); });
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool turned : {true, false}) {
      TurboOptions options;
      options.hadamard = turned;
      const TurboCodec codec = codec_of(options, bits, kDim);
      std::vector<std::byte> bytes;
      report(("turbo" + std::to_string(bits) + (turned ? " hadamard" : " random") + " encode").c_str(), [&] {
        bytes.clear();
        codec.encode(x, bytes);
      });
      report(("turbo" + std::to_string(bits) + (turned ? " hadamard" : " random") + " decode").c_str(),
             [&] { codec.decode(bytes, y); });
    }
  }
  // The nearest level by midpoints, and as the published package does it: distances to all levels, then the least.
  std::vector<std::uint8_t> codes(x.size());
  for (const int bits : {1, 2, 3, 4, 8}) {
    const auto exact = marginal_codebook(Marginal::Sphere, kDim, bits);
    const std::vector<float> levels(exact.begin(), exact.end());
    std::vector<float> borders;
    for (std::size_t level = 1; level < levels.size(); ++level)
      borders.push_back(0.5f * levels[level - 1] + 0.5f * levels[level]);
    report(("midpoints, bits " + std::to_string(bits)).c_str(), [&] {
      orthogonal_loops().assign_codes(x.data(), static_cast<int>(x.size()), borders.data(), bits, codes.data());
    });
    std::vector<float> distances(levels.size());
    report(("argmin, bits " + std::to_string(bits)).c_str(), [&] {
      for (std::size_t index = 0; index < x.size(); ++index) {
        for (std::size_t level = 0; level < levels.size(); ++level)
          distances[level] = std::abs(x[index] - levels[level]);
        codes[index] =
            static_cast<std::uint8_t>(std::min_element(distances.begin(), distances.end()) - distances.begin());
      }
    });
  }
}
