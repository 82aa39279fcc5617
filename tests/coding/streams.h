#pragma once
// Symbols with a given distribution, and what must hold of every decoder of damaged streams.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/core/rng.h>

#include "support/catch.h"

namespace kvq::test {

inline std::vector<std::uint8_t> drawn_symbols(std::span<const double> shares, std::size_t count, std::uint64_t seed) {
  Rng rng(seed);
  double sum = 0;
  for (const double share : shares) sum += share;
  std::vector<std::uint8_t> symbols;
  while (symbols.size() < count) {
    double left = rng.uniform() * sum;
    std::size_t symbol = 0;
    while (symbol + 1 < shares.size() && left >= shares[symbol]) left -= shares[symbol++];
    symbols.push_back(static_cast<std::uint8_t>(symbol));
  }
  return symbols;
}

/// A bell of `levels` symbols, as the codes of a quantizer are distributed.
inline std::vector<double> bell(int levels) {
  std::vector<double> shares;
  for (int level = 0; level < levels; ++level) {
    const double at = (level - 0.5 * (levels - 1)) / (0.2 * levels);
    shares.push_back(std::exp(-0.5 * at * at));
  }
  return shares;
}

/// decode(bytes) on a copy of exactly the bytes that are there, so that a sanitizer sees any read outside: either it
/// throws Io, or it ends. Every byte flipped in every bit, and every truncation. Returns how many were refused.
template <typename Decode>
int damage_everywhere(const std::vector<std::byte>& stream, Decode decode) {
  int refused = 0;
  const auto attempt = [&](const std::vector<std::byte>& damaged) {
    try {
      decode(std::span<const std::byte>(damaged));
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::Io);
      ++refused;
    }
  };
  for (std::size_t at = 0; at < stream.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::vector<std::byte> damaged = stream;
      damaged[at] ^= static_cast<std::byte>(1u << bit);
      attempt(damaged);
    }
    attempt(std::vector<std::byte>(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(at)));
  }
  return refused;
}

}  // namespace kvq::test
