#include <kvq/quant/rounding_recipe.h>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/kernels/layout/grouped_codes.h>
#include <kvq/quant/recipe.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>

namespace kvq {

namespace {

constexpr int kMostPasses = 16;

/// Levels that go three to a group, by the bits they stand beside.
int grouped_levels(int bits) {
  constexpr int kLevels[] = {0, 3, 5, 10, 20};
  return bits >= 1 && bits <= 4 ? kLevels[bits] : 0;
}

template <typename Number>
std::optional<Number> whole_number(std::string_view text) {
  Number value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

/// Shortest digits and point that read back as the same number.
std::string decimal_text(double value) {
  std::array<char, 400> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed).ptr;
  return {buffer.data(), end};
}

/// 0.9: digits and a point, so that neither "nan" nor "1e-1" passes.
std::optional<double> plain_decimal(std::string_view text) {
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string_view::npos) return std::nullopt;
  return whole_number<double>(text);
}

}  // namespace

int code_levels(const SideRecipe& side) { return side.levels != 0 ? side.levels : 1 << side.bits; }

double code_bits(const SideRecipe& side, int head_dim) {
  if (side.codebook == CodebookKind::Vector && side.vector.method == VectorMethod::Product) {
    KVQ_ASSERT(head_dim > 0);
    return static_cast<double>(side.vector.subspaces * side.vector.bits) / head_dim;
  }
  if (side.levels != 0) return layout::group_bits(side.levels) / 3.0;
  return side.bits + (side.half_bit ? 0.5 : 0.0);
}

bool needs_blocks(const SideRecipe& side) { return side.rounding.uses_blocks() || side.widths == Widths::Pair; }

bool needs_gradients(const SideRecipe& side) {
  const bool weighted = side.weights == FitWeights::Fisher || side.weights == FitWeights::FisherUnscaled;
  return (weighted && fits_with_weights(side)) ||
         (needs_blocks(side) && side.rounding.metric == RoundingMetric::Fisher);
}

bool needs_metric(const SideRecipe& side) {
  return side.weights == FitWeights::Query || (needs_blocks(side) && side.rounding.metric == RoundingMetric::Query);
}

void use_query_metric(SideRecipe& side) {
  if (needs_blocks(side)) side.rounding.metric = RoundingMetric::Query;
  if (fits_with_weights(side) && side.weights != FitWeights::None) side.weights = FitWeights::Query;
  if (!needs_gradients(side)) side.rounding.clip = 1.0;
}

Recipe with_query_metric(Recipe recipe) {
  if (!recipe.quantized) return recipe;
  for (const Side which : kSides) use_query_metric(recipe.side(which));
  validate(recipe);
  return recipe;
}

bool has_plain_codes(const SideRecipe& side) {
  return side.widths == Widths::Flat && side.levels == 0 && side.rotation == Rotation::None;
}

std::vector<int> width_choices(const SideRecipe& side) {
  const int lowest = side.bits == 1 ? 0 : std::max(1, side.bits - 2);
  const int highest = side.bits + (side.half_bit ? 3 : 2);
  std::vector<int> choices;
  for (int bits = lowest; bits <= highest; ++bits) choices.push_back(bits);
  return choices;
}

int head_vector_bits(const SideRecipe& side, int head_dim) {
  if (head_dim % 2 != 0) return 0;
  const int quarter_bits = head_dim * (2 * side.bits + (side.half_bit ? 1 : 0));  // of a pair: two channels, two halves
  return quarter_bits % 4 == 0 ? quarter_bits / 2 : 0;
}

std::optional<std::string> rounding_problem(const SideRecipe& side, Side which) {
  const RoundingRecipe& rounding = side.rounding;
  if (side.levels != 0) {
    if (which == Side::Key) return "levels= is for values; keys have powers of two";
    if (side.codebook != CodebookKind::Nuq) return "levels= is for fitted codebooks (nuq)";
    if (side.levels != grouped_levels(side.bits)) {
      return fmt::format("{} levels beside {} bits; possible are 3 beside 1, 5 beside 2, 10 beside 3, 20 beside 4 bits",
                         side.levels, side.bits);
    }
  }
  if (side.half_bit && (side.widths != Widths::Pair || side.bits > 7))
    return "half bits need widths=pair, which gives some channels more and some less, and is for keys (K=…/V=…)";
  if (side.widths == Widths::Pair) {
    if (which == Side::Value) return "widths=pair is for keys: values have no RoPE pairs";
    if (side.axis != Axis::Channel || side.range != RangeKind::Static)
      return "widths=pair needs static ranges: axis channel, range static";
    if (side.codebook != CodebookKind::Nuq) return "widths=pair is for fitted codebooks (nuq)";
    if (side.share != Share::Layer || side.qnorm) {
      return fmt::format("widths=pair has one codebook per layer and width: {} is not possible",
                         side.qnorm                  ? "qnorm"
                         : side.share == Share::Head ? "share=head"
                                                     : "share=N");
    }
    if (width_choices(side).back() > 8) return "widths=pair takes at most 6 bits: some channels get two more";
  }
  if (side.rotation != Rotation::None) {
    if (which == Side::Key) return "rotate= is for values; keys keep their channels for RoPE";
    if (side.axis != Axis::Token) return "rotate=hadamard needs one range per token: axis token";
    if (side.range == RangeKind::Window) return "rotate=hadamard needs range online or static, not window";
  }
  const bool chooses_codes = rounding.uses_blocks() || side.widths == Widths::Pair || side.levels != 0;
  if ((chooses_codes || side.rotation != Rotation::None) && (!is_streaming(side) || side.share == Share::Channels)) {
    return "feedback, icm, widths=, levels= and rotate= are for tokens that are coded one by one with thresholds of "
           "channels or one range per token, and codebooks per layer or head: no groups, rule=, zero=, share=N, "
           "q4_0, q8_0, fp8, turbo or codecs of head vectors beside them";
  }
  if (rounding.icm < 0 || rounding.icm > kMostPasses)
    return fmt::format("icm={}; 0 to {} passes are possible", rounding.icm, kMostPasses);
  if (!(rounding.damp >= 0.0 && rounding.damp <= 1.0))
    return fmt::format("damp {}; 0 to 1 (100 %) of the mean diagonal are possible", rounding.damp);
  if (!(rounding.clip > 0.0 && rounding.clip <= 1.0))
    return fmt::format("clip={}; it must be above 0 and at most 1 (no clipping)", rounding.clip);
  if (rounding.uses_blocks() && side.range == RangeKind::Window)
    return "feedback and icm need ranges that are known before the window is seen: range static or online";
  if (rounding.order != CodingOrder::Energy && !rounding.uses_blocks())
    return "order= is the order of feedback and icm; there is neither";
  if (rounding.damp != RoundingRecipe{}.damp && !needs_blocks(side))
    return "damp= is for feedback, icm and widths=pair; there is none of them";
  if (rounding.clip != 1.0 && has_own_format(side.codebook) && !fits_with_weights(side))
    return "clip= cuts gradients, but fixed formats fit nothing";
  if (rounding.clip != 1.0 && side.weights == FitWeights::None && !needs_blocks(side))
    return "clip= cuts gradients, but nothing here uses them (weights=none)";
  if (rounding.clip != 1.0 && needs_metric(side) && !needs_gradients(side))
    return "clip= cuts gradients, but nothing here uses them (metric=query, weights=query)";
  if (rounding.metric != RoundingMetric::Fisher && !needs_blocks(side))
    return "metric= is for feedback, icm and widths=pair; there is none of them (weights=query is for codebooks)";
  if (side.post_rope && needs_metric(side))
    return "metric=query and weights=query are for keys before RoPE: the metric is that of unrotated keys";
  return std::nullopt;
}

std::optional<SideRecipe> preset_side(std::string_view name, Side which) {
  if (std::find(kPresetNames.begin(), kPresetNames.end(), name) == kPresetNames.end()) return std::nullopt;
  SideRecipe side = default_side(which);
  side.bits = name[3] - '0';
  side.rounding = {.feedback = true, .icm = 3, .clip = 0.9};
  if (which == Side::Key) {
    side.half_bit = name == "kvq1.5";
    side.outliers = 0.01;
    side.widths = Widths::Pair;
  } else {
    side.levels = grouped_levels(side.bits);
    side.rotation = Rotation::Hadamard;
  }
  return side;
}

std::string_view known_rounding_words() {
  return "feedback, icm=N, metric=, order=, damp=F%, clip=Q, widths=, levels=N, rotate=";
}

std::optional<Side> side_of_rounding_word(std::string_view name) {
  if (name == "widths") return Side::Key;
  if (name == "levels" || name == "rotate") return Side::Value;
  return std::nullopt;
}

WordResult take_rounding_word(SideRecipe& side, const std::string& name, const std::string& argument,
                              std::string& problem) {
  const auto refuse = [&](const std::string& accepted) {
    problem = fmt::format("'{}={}'; {}", name, shortened(argument), accepted);
    return WordResult::Refused;
  };
  const auto choose = [&](const auto& words, auto& field) {
    const auto found = find_word(words, argument);
    if (!found) return refuse(fmt::format("{} can be: {}", name, list_words(words)));
    field = *found;
    return WordResult::Taken;
  };
  if (name == "feedback") {
    if (argument == "" || argument == "on" || argument == "off") {
      side.rounding.feedback = argument != "off";
      return WordResult::Taken;
    }
    return refuse("feedback can be: on, off");
  }
  if (name == "order") return choose(kOrderWords, side.rounding.order);
  if (name == "widths") return choose(kWidthsWords, side.widths);
  if (name == "rotate") return choose(kRotationWords, side.rotation);
  if (name == "icm") {
    const auto passes = whole_number<int>(argument);
    if (!passes || *passes < 0 || *passes > kMostPasses)
      return refuse(fmt::format("icm takes a number of passes from 0 to {}", kMostPasses));
    side.rounding.icm = *passes;
    return WordResult::Taken;
  }
  if (name == "levels") {
    const auto levels = whole_number<int>(argument);
    const int grouped = grouped_levels(side.bits);
    if (!levels || (*levels != 1 << side.bits && (grouped == 0 || *levels != grouped)))
      return refuse(fmt::format("beside {} bits it can be {}{}", side.bits, 1 << side.bits,
                                grouped == 0 ? "" : fmt::format(" or {}", grouped)));
    side.levels = *levels == grouped ? grouped : 0;
    return WordResult::Taken;
  }
  if (name == "damp") {
    const bool has_sign = !argument.empty() && argument.back() == '%';
    const auto damp =
        has_sign ? parse_percent(std::string_view(argument).substr(0, argument.size() - 1)) : std::nullopt;
    if (!damp || *damp > 1.0) return refuse("damp takes a share of H's mean diagonal such as 1% or 10%, at most 100%");
    side.rounding.damp = *damp;
    return WordResult::Taken;
  }
  if (name == "clip") {
    const auto quantile = plain_decimal(argument);
    if (!quantile || !(*quantile > 0.0 && *quantile <= 1.0))
      return refuse("clip takes a quantile above 0 and at most 1, as a plain decimal such as 0.9");
    side.rounding.clip = *quantile;
    return WordResult::Taken;
  }
  return WordResult::Unknown;
}

void append_rounding_words(std::vector<std::string>& words, const SideRecipe& side, const SideRecipe* other) {
  const RoundingRecipe& rounding = side.rounding;
  if (side.widths != Widths::Flat) words.push_back("widths=" + word_of(kWidthsWords, side.widths));
  const SideRecipe& values = other != nullptr ? *other : side;
  if (values.levels != 0) words.push_back(fmt::format("levels={}", values.levels));
  if (values.rotation != Rotation::None) words.push_back("rotate=" + word_of(kRotationWords, values.rotation));
  if (rounding.feedback) words.emplace_back("feedback");
  if (rounding.icm > 0) words.push_back(fmt::format("icm={}", rounding.icm));
  if (rounding.metric != RoundingMetric::Fisher) words.push_back("metric=" + word_of(kMetricWords, rounding.metric));
  if (rounding.order != CodingOrder::Energy) words.push_back("order=" + word_of(kOrderWords, rounding.order));
  if (rounding.damp != RoundingRecipe{}.damp) words.push_back(fmt::format("damp={}%", format_percent(rounding.damp)));
  if (rounding.clip != 1.0) words.push_back("clip=" + decimal_text(rounding.clip));
}

}  // namespace kvq
