#pragma once
// How weights are quantized, in a word: `w4-s0.45%` is 4 bits with 0.45 % of each matrix kept exact.

#include <string>

namespace kvq {

inline constexpr double kMostSparse = 0.5;
/// Of the exact weights of a matrix, so many parts of all its weights are chosen by sensitivity, the rest by magnitude
/// (SqueezeLLM, arXiv 2306.07629: 0.05 % of 0.45 %).
inline constexpr double kSensitiveShare = 0.0005;

struct WeightScheme {
  int bits = 4;       ///< 1 to 8
  double sparse = 0;  ///< fraction of a matrix that stays exact
  bool operator==(const WeightScheme&) const = default;
};

/// `wB` or `wB-sF%`. Throws Usage naming the word and what is possible.
WeightScheme parse_weight_scheme(const std::string& text);
std::string short_form(const WeightScheme& scheme);
/// For file names: "w4-s0.45pct".
std::string slug(const WeightScheme& scheme);

}  // namespace kvq
