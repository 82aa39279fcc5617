#pragma once
// Codebooks that need no data (TurboQuant, arXiv 2504.19874, section 3.1): a uniform unit vector of R^d, as every
// vector is after a random rotation and division by its norm, has coordinates of density
//
//   f(t) = Γ(d/2) / (√π Γ((d-1)/2)) · (1 - t²)^((d-3)/2)  on [-1, 1],
//
// and the levels that make E (t - level)² least (Lloyd–Max) follow from f alone: each level is the mean of its cell,
// each border the midpoint of two levels. For d = 3 the density is flat and the levels even; for d = 2 it is infinite
// at both ends. As d grows, √d · t tends to a standard normal variable; the levels for N(0, 1/d), which the paper also
// names, are here for comparison.

#include <span>

namespace kvq {

enum class Marginal {
  Sphere,  ///< f, exact for every d
  Gauss,   ///< N(0, 1/d)
};

/// The 2^bits levels for coordinates in R^dim, ascending and symmetric: level[i] = -level[last - i] exactly. dim from
/// 2, bits 1 to 8. Every level agrees with the mean of its cell to a relative 1e-13. Computed once for each (marginal,
/// dim, bits) and kept for the life of the process; thread-safe.
std::span<const double> marginal_codebook(Marginal marginal, int dim, int bits);

/// E (t - nearest level)² of one coordinate under the marginal, by numerical integration; `levels` ascending.
double marginal_error(Marginal marginal, int dim, std::span<const double> levels);

}  // namespace kvq
