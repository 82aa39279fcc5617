#pragma once
// Do two texts overlap? Content-defined fingerprints of token streams (winnowing's idea, Schleimer et al. 2003): the
// hash of every run of kShingle ids, kept when it is 0 modulo kKeepOneIn. Shared passages of a few hundred tokens share
// some, wherever they stand.

#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

inline constexpr int kShingle = 16;
inline constexpr int kKeepOneIn = 32;

/// Ascending, without duplicates.
std::vector<std::uint64_t> fingerprints(std::span<const std::int32_t> ids);

/// Share of `text`'s fingerprints that `known` (ascending) holds too; 0 when `text` has none.
double overlap(std::span<const std::uint64_t> text, std::span<const std::uint64_t> known);

}  // namespace kvq
