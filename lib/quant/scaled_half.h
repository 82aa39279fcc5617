#pragma once
// Exact values and online ranges as fp16(x · 2^-exponent), one power-of-two exponent per layer and side: fp16 alone
// would lose values of 1e-6 to its subnormals and values of 7e4 to infinity.

#include <cstdint>

namespace kvq {

/// Exponent for data whose largest magnitude in calibration is `max_abs`. 0 when fp16 holds such data as it is: the
/// largest value in [2^-4, 2^12], so that three decades below it are still normal numbers and ×16 above it still fits.
/// Otherwise the largest value is put into [2^10, 2^11): ×32 of headroom, 24 binades of normal numbers below. At most
/// ±120, so that 2^exponent and its inverse are normal floats. Throws Numeric when `max_abs` is negative, NaN or
/// infinite.
int choose_exponent(float max_abs);

/// 2^exponent; `exponent` in [-126, 127].
float power_of_two(int exponent);

}  // namespace kvq
