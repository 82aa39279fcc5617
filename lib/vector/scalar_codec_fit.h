#pragma once
// Levels for a ScalarCodec from a sample.

#include <span>
#include <vector>

#include <kvq/vector/scalar_codec.h>

namespace kvq {

/// 2^bits ascending levels (bits 1 to 8) with the least squared error on the rows of `sample`, `[rows, dim]`, finite:
/// the best partition of a histogram of 4096 bins of x / scale, weighted with scale² since the error counts in x. A
/// sample without distinct values gets spare levels that change no code.
std::vector<float> fit_scalar_levels(std::span<const float> sample, int dim, RowScale scale, int bits);

/// 2^bits levels evenly from -r to r, r the largest |x| / scale of the sample: costs more error at a fixed width, less
/// at equal entropy.
std::vector<float> even_scalar_levels(std::span<const float> sample, int dim, RowScale scale, int bits);

}  // namespace kvq
