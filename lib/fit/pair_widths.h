#pragma once
// Bits for each RoPE pair of a head vector, so many in all.

#include <span>
#include <utility>
#include <vector>

namespace kvq {

/// Channels that get the same width: (j, j + rotary_dim / 2), then those that do not rotate, likewise by halves.
/// `head_dim` and `rotary_dim` even.
std::vector<std::pair<int, int>> channel_pairs(int head_dim, int rotary_dim);

/// Widths, one of `choices` (ascending) for each pair, with the least sum of cost · distortion among those that sum to
/// `total`. `distortion[i]` belongs to choices[i]. Exact (dynamic programming); ties go to the narrower width of the
/// last pair.
std::vector<int> allocate_widths(std::span<const double> costs, std::span<const int> choices,
                                 std::span<const double> distortion, int total);

}  // namespace kvq
