#include <kvq/cache/page_loops.h>

#include <array>
#include <cmath>
#include <vector>

#include "support/catch.h"

#include <kvq/core/rng.h>

using namespace kvq;

namespace {

std::vector<float> random_floats(std::size_t count, Rng& rng) {
  std::vector<float> x;
  for (std::size_t i = 0; i < count; ++i) x.push_back(static_cast<float>(2.0 * rng.uniform() - 1.0));
  return x;
}

template <typename Check>
void at_every_level(Check check) {
  for (const SimdLevel level : {SimdLevel::Portable, SimdLevel::Avx2, SimdLevel::Avx512}) {
    if (level > best_simd_level()) continue;
    INFO("level " << static_cast<int>(level));
    check(page_loops(level));
  }
}

}  // namespace

TEST_CASE("Rows of codes of every width are decoded to the same bits at every level") {
  at_every_level([](const PageLoops& loops) {
    Rng rng(3);
    for (int bits = 1; bits <= 8; ++bits) {
      constexpr int kRows = 5;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(kRows * 8 * bits + 16));
      for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(rng.below(256));
      std::vector<float> table = random_floats(std::size_t{1} << bits, rng);
      for (std::size_t entry = table.size(); entry < 16; ++entry)
        table.push_back(table[entry % (std::size_t{1} << bits)]);
      const std::vector<float> zero = random_floats(64, rng), scale = random_floats(64, rng);
      std::vector<float> channels(kRows * 64), tokens(kRows * 64);
      loops.decode_channels(codes.data(), kRows, bits, table.data(), zero.data(), scale.data(), channels.data());
      loops.decode_tokens(codes.data(), kRows, bits, table.data(), zero.data(), scale.data(), tokens.data());
      int wrong = 0;
      for (int row = 0; row < kRows; ++row) {
        for (int token = 0; token < 64; ++token) {
          std::size_t code = 0;
          for (int place = 0; place < bits; ++place) {
            const int bit = row * 64 * bits + token * bits + place;
            code |= static_cast<std::size_t>(codes[static_cast<std::size_t>(bit / 8)] >> (bit % 8) & 1) << place;
          }
          volatile float by_channel = scale[static_cast<std::size_t>(row)] * table[code];
          volatile float by_token = scale[static_cast<std::size_t>(token)] * table[code];
          const auto at = static_cast<std::size_t>(row * 64 + token);
          wrong += channels[at] != zero[static_cast<std::size_t>(row)] + by_channel;
          wrong += tokens[at] != zero[static_cast<std::size_t>(token)] + by_token;
        }
      }
      INFO(bits << " bits");
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("Rows of codes three together are decoded to the same bits at every level") {
  at_every_level([](const PageLoops& loops) {
    Rng rng(6);
    const std::vector<std::array<int, 3>> sizes = {{3, 5, 2}, {5, 7, 3}, {10, 10, 4}, {20, 13, 5}};
    for (const auto& [levels, group_bits, tail_bits] : sizes) {
      constexpr int kRows = 9;  // rows begin at every place of a byte
      const int row_bits = 21 * group_bits + tail_bits;
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(kRows * row_bits / 8 + 20));
      std::vector<int> expected;
      for (int row = 0; row < kRows; ++row) {
        for (int slot = 0; slot < 64; slot += 3) {
          int together = 0;
          for (int place = 0, weight = 1; place < (slot < 63 ? 3 : 1); ++place, weight *= levels) {
            expected.push_back(slot == 0 ? levels - 1
                                         : static_cast<int>(rng.below(static_cast<std::uint64_t>(levels))));
            together += weight * expected.back();
          }
          for (int place = 0; place < (slot < 63 ? group_bits : tail_bits); ++place) {
            const int bit = row * row_bits + slot / 3 * group_bits + place;
            codes[static_cast<std::size_t>(bit / 8)] |= static_cast<std::uint8_t>((together >> place & 1) << (bit % 8));
          }
        }
      }
      std::vector<float> table = random_floats(static_cast<std::size_t>(levels), rng);
      while (table.size() < 32) table.push_back(table[table.size() % static_cast<std::size_t>(levels)]);
      const std::vector<float> zero = random_floats(64, rng), scale = random_floats(64, rng);
      for (const bool by_token : {false, true}) {
        std::vector<float> out(kRows * 64);
        loops.decode_grouped(codes.data(), kRows, levels, by_token, table.data(), zero.data(), scale.data(),
                             out.data());
        int wrong = 0;
        for (std::size_t at = 0; at < out.size(); ++at) {
          const std::size_t range = by_token ? at % 64 : at / 64;
          volatile float product = scale[range] * table[static_cast<std::size_t>(expected[at])];
          wrong += out[at] != zero[range] + product;
        }
        INFO(levels << " levels");
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("Products of every size are those of three nested loops") {
  at_every_level([](const PageLoops& loops) {
    Rng rng(4);
    for (const int rows : {1, 2, 3, 4, 5, 6, 7, 11, 13}) {
      for (const int columns : {16, 48, 64, 80, 256}) {
        const int depth = 20, a_stride = 23, b_stride = columns + 16, c_stride = columns + 3;
        const std::vector<float> a = random_floats(static_cast<std::size_t>(rows * a_stride), rng),
                                 b = random_floats(static_cast<std::size_t>(depth * b_stride), rng);
        std::vector<float> c = random_floats(static_cast<std::size_t>(rows * c_stride), rng), more = c;
        const std::vector<float> before = c;
        loops.multiply(a.data(), a_stride, rows, depth, b.data(), b_stride, columns, c.data(), c_stride, false);
        loops.multiply(a.data(), a_stride, rows, depth, b.data(), b_stride, columns, more.data(), c_stride, true);
        double largest = 0;
        for (int row = 0; row < rows; ++row) {
          for (int column = 0; column < c_stride && (row + 1 < rows || column < columns); ++column) {
            double sum = 0;
            for (int k = 0; k < depth && column < columns; ++k) {
              sum += static_cast<double>(a[static_cast<std::size_t>(row * a_stride + k)]) *
                     b[static_cast<std::size_t>(k * b_stride + column)];
            }
            const auto at = static_cast<std::size_t>(row * c_stride + column);
            const double expected = column < columns ? sum : before[at];  // nothing beyond the columns is touched
            largest = std::max({largest, std::abs(c[at] - expected),
                                std::abs(more[at] - (column < columns ? before[at] + sum : before[at]))});
          }
        }
        INFO(rows << " x " << columns);
        CHECK(largest < 1e-5);
      }
    }
  });
}

TEST_CASE("Weighted sums, rotations and transposes do what they say") {
  at_every_level([](const PageLoops& loops) {
    Rng rng(5);
    constexpr int kHeadDim = 20, kPairs = 8;
    const std::vector<float> block = random_floats(kHeadDim * 64, rng);
    for (int rows = 1; rows <= kMostLaneRows; ++rows) {
      const std::vector<float> weights = random_floats(static_cast<std::size_t>(rows * 64), rng);
      std::vector<float> lanes(static_cast<std::size_t>(kHeadDim * rows * loops.lanes)),
          sums(static_cast<std::size_t>(rows * 24));
      loops.add_weighted(weights.data(), rows, block.data(), kHeadDim, lanes.data());
      loops.add_weighted(weights.data(), rows, block.data(), kHeadDim, lanes.data());
      loops.sum_lanes(lanes.data(), rows, kHeadDim, sums.data(), 24);
      double largest = 0;
      for (int row = 0; row < rows; ++row) {
        for (int channel = 0; channel < kHeadDim; ++channel) {
          double sum = 0;
          for (int token = 0; token < 64; ++token) {
            sum += 2.0 * weights[static_cast<std::size_t>(row * 64 + token)] *
                   block[static_cast<std::size_t>(channel * 64 + token)];
          }
          largest = std::max(largest, std::abs(sum - sums[static_cast<std::size_t>(row * 24 + channel)]));
        }
      }
      CHECK(largest < 2e-5);
    }

    std::vector<float> transposed(64 * 32, -1.0f);
    loops.transpose(block.data(), kHeadDim, transposed.data(), 32);
    int wrong = 0;
    for (int token = 0; token < 64; ++token) {
      for (int channel = 0; channel < 32; ++channel) {
        const float expected = channel < kHeadDim ? block[static_cast<std::size_t>(channel * 64 + token)] : -1.0f;
        wrong += transposed[static_cast<std::size_t>(token * 32 + channel)] != expected;
      }
    }
    CHECK(wrong == 0);

    std::vector<float> cosine, sine, rotated = block;
    for (int pair = 0; pair < kPairs; ++pair) {
      for (int token = 0; token < 64; ++token) {
        cosine.push_back(static_cast<float>(std::cos(0.1 * pair * token)));
        sine.push_back(static_cast<float>(std::sin(0.1 * pair * token)));
      }
    }
    loops.rotate_rows(rotated.data(), kPairs, cosine.data(), sine.data());
    double largest = 0;
    for (int token = 0; token < 64; ++token) {
      std::vector<float> vector(kHeadDim), turned(kHeadDim), c(kPairs), s(kPairs);
      for (int channel = 0; channel < kHeadDim; ++channel)
        vector[static_cast<std::size_t>(channel)] = block[static_cast<std::size_t>(channel * 64 + token)];
      for (int pair = 0; pair < kPairs; ++pair) {
        c[static_cast<std::size_t>(pair)] = cosine[static_cast<std::size_t>(pair * 64 + token)];
        s[static_cast<std::size_t>(pair)] = sine[static_cast<std::size_t>(pair * 64 + token)];
      }
      loops.rotate_vectors(vector.data(), 1, kHeadDim, kPairs, c.data(), s.data(), turned.data());
      for (int channel = 0; channel < kHeadDim; ++channel) {
        const int pair = channel % kPairs, first = pair, second = pair + kPairs;
        const double angle = 0.1 * pair * token, a = vector[static_cast<std::size_t>(first)],
                     b = vector[static_cast<std::size_t>(second)];
        const double expected = channel < kPairs       ? a * std::cos(angle) - b * std::sin(angle)
                                : channel < 2 * kPairs ? b * std::cos(angle) + a * std::sin(angle)
                                                       : vector[static_cast<std::size_t>(channel)];
        largest = std::max({largest, std::abs(expected - rotated[static_cast<std::size_t>(channel * 64 + token)]),
                            std::abs(expected - turned[static_cast<std::size_t>(channel)])});
      }
    }
    CHECK(largest < 1e-6);
  });
}
