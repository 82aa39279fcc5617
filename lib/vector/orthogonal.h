#pragma once
// Random rotations of vectors (TurboQuant, arXiv 2504.19874: Π; QuIP# and others: Hadamard). After one, a vector that
// was fixed beforehand points in a random direction, whatever it was.
//
//   random    Haar on SO(dim): Gaussian matrix, Householder QR, R's diagonal made positive (without that Q would not be
//             Haar), one row negated where the determinant is -1. dim² operations a row.
//   hadamard  H · diag(signs) / √dim with Sylvester's H, dim · log2(dim) operations. Nothing like Haar: one-hot vectors
//             become vectors of equal magnitudes. Where dim is no power of two, H acts on blocks of the largest power
//             of two that divides it (80: five of 16), and there are as many rounds with signs of their own as it takes
//             for every input to reach every output (80: two); between them a permutation deals each block's elements
//             out to the blocks in turn. The determinant is +1 or -1.
//
// All in fp32 with a fixed order of operations: the same bytes on every machine, given the same table. Tables come from
// Rng and libm's log, whose last bit may differ between C libraries, so artifacts store the tables, not the seeds.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/core/rng.h>

namespace kvq {

struct OrthogonalLoops;

/// Largest power of two that divides `dim`.
constexpr int hadamard_block(int dim) { return dim & -dim; }

/// Standard normal numbers (Marsaglia's polar method).
std::vector<double> normal_numbers(Rng& rng, std::size_t count);

/// Const and thread-safe.
class OrthogonalTransform {
 public:
  static OrthogonalTransform random(int dim, std::uint64_t seed);
  static OrthogonalTransform hadamard(int dim, std::uint64_t seed);
  /// From what table() gave. Throws Mismatch for a wrong size, for a matrix that is not orthogonal (a product of two
  /// rows off by more than 1e-4), for signs other than ±1, and for a dim without Hadamard rotation.
  static OrthogonalTransform from_matrix(int dim, std::vector<float> matrix);
  static OrthogonalTransform from_signs(int dim, std::vector<float> signs);

  /// Whether blocks have at least 8 elements: smaller ones mix too little to be worth their rounds.
  static bool has_hadamard(int dim) { return hadamard_block(dim) >= 8; }
  /// Of a Hadamard rotation: 1 for powers of two, else the least r with block^r >= dim.
  static int hadamard_rounds(int dim);

  int dim() const { return dim_; }
  bool is_matrix() const { return rounds_ == 0; }
  /// The matrix Q of y = Q x, `[dim, dim]`, or signs, `[rounds, dim]`.
  const std::vector<float>& table() const { return table_; }

  /// `x`, `y`: `[rows, dim]`, not overlapping. y = Q x, and x = Qᵀ y.
  void forward(std::span<const float> x, std::span<float> y) const;
  void inverse(std::span<const float> y, std::span<float> x) const;

  /// inverse() of the columns of `block`, `[dim, columns]`, in place. `scratch`: anything, for reuse. The same bytes as
  /// inverse() of each column.
  void inverse_columns(float* block, int columns, std::vector<float>& scratch) const;

 private:
  OrthogonalTransform(int dim, int rounds, std::vector<float> table);

  const OrthogonalLoops* loops_;
  int dim_, rounds_;  ///< rounds 0: a matrix
  float scale_ = 1.0f;
  std::vector<float> table_, columns_;      ///< columns_: the matrix transposed
  std::vector<std::int32_t> dealt_, back_;  ///< between rounds: new element i is old element dealt_[i]; its inverse
};

}  // namespace kvq
