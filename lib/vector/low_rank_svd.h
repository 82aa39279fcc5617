#pragma once
// Largest singular values of a small matrix, by one-sided Jacobi rotations in double (Hestenes 1958; de Rijk 1989):
// columns are turned against each other until all are orthogonal. Exact to rounding, no random start.

#include <span>
#include <vector>

namespace kvq {

struct TruncatedSvd {
  std::vector<double> values;  ///< descending, `[rank]`, rank = min(asked, rows, columns)
  std::vector<double> left;    ///< `[rank, rows]`, orthonormal; zeros where the value is 0
  std::vector<double> right;   ///< `[rank, columns]`
};

/// `matrix`: `[rows, columns]`, finite; the columns or the rows are turned, whichever are fewer.
TruncatedSvd truncated_svd(std::span<const double> matrix, int rows, int columns, int rank);

}  // namespace kvq
