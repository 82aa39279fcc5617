#pragma once
// Q-Norm (KVQuant, section 3.7): decoded values are shifted and scaled offline so that the dequantized distribution has
// the mean and standard deviation of the original one:
//   decoded = (centroid - m_q) * s_x / s_q + m_x
// with m_x, s_x of the normalised calibration values (sinks and outliers left out, each value counted once) and m_q,
// s_q of the centroids that they are coded as. Codes are still chosen by the centroids.

#include <span>

#include <kvq/quant/codebook.h>

namespace kvq {

/// `weights`: only zero or not matters. Nothing changes when all values get the same code.
void apply_qnorm(Codebook& codebook, std::span<const float> values, std::span<const float> weights, int threads);

/// What decoding with a codebook costs: sum of w (x - decoded)², and the sum of the weights.
struct CodebookError {
  double error = 0, weight = 0;
};
CodebookError codebook_error(const Codebook& codebook, std::span<const float> values, std::span<const float> weights,
                             int threads);

}  // namespace kvq
