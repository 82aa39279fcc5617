#pragma once
// What a report shows as pictures, from its numbers.

#include <optional>
#include <string>
#include <vector>

#include <kvq/eval/report.h>
#include <kvq/report/chart.h>

namespace kvq {

/// A recipe without its bits ("nuqB-1%"), or with its bits but without its budget where tokens are evicted: what one
/// curve of a rate–distortion chart holds.
std::string recipe_family(const std::string& name);

enum class Damage { Kl, DeltaNll };
/// Damage against counted bits, one curve a family, bars of one standard error. What has no counted bits is left out.
Chart rate_distortion(const PerplexityReport& report, Damage damage);

enum class PerPosition { Nll, Kl };
inline constexpr std::size_t kMostCurves = 8;
/// Against the number of tokens before the predicted one; the first kMostCurves whole caches (and the baseline's
/// losses).
Chart by_position(const PerplexityReport& report, PerPosition what);

/// Exact values per value: one row per cache and side that has any, one column per layer.
std::optional<HeatMap> outlier_rates(const PerplexityReport& report);
/// Mean KL of caches of which one layer is quantized: rows are recipe and side, columns are layers.
std::optional<HeatMap> sensitivity(const PerplexityReport& report);
/// ΔNLL of one recipe by calibration (rows) and text (columns), for each recipe with more than one calibration.
std::vector<HeatMap> calibration_matrices(const std::vector<Evaluation>& evaluations);
/// Share of keys found by depth (rows) and length (columns).
HeatMap passkey_grid(const PasskeyResult& result);
std::optional<Histogram> side_histogram(const VariantResult& result, int layer, Side side);

}  // namespace kvq
