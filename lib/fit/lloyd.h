#pragma once
// Lloyd's iteration on ascending cells.

#include <span>
#include <vector>

#include <kvq/fit/moments.h>

namespace kvq {

/// Midpoints between neighbours; a value on a midpoint belongs to the lower centroid.
std::vector<double> midpoints(std::span<const double> centroids);

/// Moves `centroids` (ascending) to the weighted means of the cells nearest to them until no cell changes its centroid
/// or `most_rounds` are done. A centroid that loses all its cells stays where it is.
void lloyd(std::span<const Moments> cells, std::span<double> centroids, int most_rounds);

/// Sum over cells of w (x - nearest centroid)², cells taken as wholes.
double clustering_error(std::span<const Moments> cells, std::span<const double> centroids);

}  // namespace kvq
