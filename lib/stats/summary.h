#pragma once
// Means and their standard errors over clusters (windows).

#include <optional>
#include <span>

namespace kvq {

double mean(std::span<const double> values);
/// Standard error of the mean over independent clusters; nullopt below 5 of them (DESIGN §2).
std::optional<double> standard_error(std::span<const double> clusters);

}  // namespace kvq
