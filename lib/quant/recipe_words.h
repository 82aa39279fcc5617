#pragma once
// Spelling of the enums of a recipe: one table each, used by the short form, the TOML form and messages alike.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <kvq/quant/recipe.h>

namespace kvq {

template <typename Enum, std::size_t kCount>
using Words = std::array<std::pair<std::string_view, Enum>, kCount>;

inline constexpr Words<CodebookKind, 8> kCodebookWords = {{{"nuq", CodebookKind::Nuq},
                                                           {"int", CodebookKind::Int},
                                                           {"nf", CodebookKind::Nf},
                                                           {"q4_0", CodebookKind::Q4_0},
                                                           {"q8_0", CodebookKind::Q8_0},
                                                           {"fp8", CodebookKind::Fp8},
                                                           {"turbo", CodebookKind::Turbo},
                                                           {"vector", CodebookKind::Vector}}};
inline constexpr Words<Axis, 4> kAxisWords = {{{"channel", Axis::Channel},
                                               {"token", Axis::Token},
                                               {"channel-group", Axis::ChannelGroup},
                                               {"token-group", Axis::TokenGroup}}};
inline constexpr Words<RangeKind, 4> kRangeWords = {{{"static", RangeKind::Static},
                                                     {"online", RangeKind::Online},
                                                     {"window", RangeKind::Window},
                                                     {"none", RangeKind::None}}};
inline constexpr Words<OutlierRule, 2> kRuleWords = {
    {{"threshold", OutlierRule::Threshold}, {"topk", OutlierRule::TopK}}};
inline constexpr Words<bool, 2> kZeroWords = {{{"half", false}, {"integer", true}}};  ///< SideRecipe::integer_zero
inline constexpr Words<FitWeights, 4> kWeightWords = {{{"fisher", FitWeights::Fisher},
                                                       {"fisher-unscaled", FitWeights::FisherUnscaled},
                                                       {"query", FitWeights::Query},
                                                       {"none", FitWeights::None}}};
inline constexpr Words<Share, 2> kShareWords = {{{"layer", Share::Layer}, {"head", Share::Head}}};
inline constexpr Words<Widths, 2> kWidthsWords = {{{"flat", Widths::Flat}, {"pair", Widths::Pair}}};
inline constexpr Words<RoundingMetric, 2> kMetricWords = {
    {{"fisher", RoundingMetric::Fisher}, {"query", RoundingMetric::Query}}};
inline constexpr Words<Rotation, 2> kRotationWords = {{{"none", Rotation::None}, {"hadamard", Rotation::Hadamard}}};
inline constexpr Words<CodingOrder, 3> kOrderWords = {
    {{"energy", CodingOrder::Energy}, {"ascending", CodingOrder::Ascending}, {"natural", CodingOrder::Natural}}};
inline constexpr Words<bool, 2> kRopeWords = {{{"pre", false}, {"post", true}}};  ///< SideRecipe::post_rope

template <typename Enum, std::size_t kCount>
std::optional<Enum> find_word(const Words<Enum, kCount>& words, std::string_view text) {
  for (const auto& [word, value] : words) {
    if (word == text) return value;
  }
  return std::nullopt;
}

template <typename Enum, std::size_t kCount>
std::string word_of(const Words<Enum, kCount>& words, Enum value) {
  for (const auto& [word, candidate] : words) {
    if (candidate == value) return std::string(word);
  }
  return "?";
}

/// "channel, token"
template <typename Enum, std::size_t kCount>
std::string list_words(const Words<Enum, kCount>& words) {
  std::string list;
  for (const auto& [word, value] : words) list += (list.empty() ? "" : ", ") + std::string(word);
  return list;
}

/// A fraction as a plain decimal percentage and back, without loss: 0.01 <-> "1". nullopt: not digits with one point.
std::string format_percent(double fraction);
std::optional<double> parse_percent(std::string_view digits);

/// KVQuant's choice for a side: keys per channel with static thresholds, values per token with the token's own range.
SideRecipe default_side(Side side);

}  // namespace kvq
