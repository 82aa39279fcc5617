#include <kvq/quant/recipe.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/turbo_recipe.h>
#include <kvq/quant/vector_side.h>

namespace kvq {

namespace {

[[noreturn]] void contradiction(const char* side, const std::string& message) {
  fail(ErrorKind::Usage, fmt::format("recipe, {}: {}", side, message));
}

void validate_side(const SideRecipe& side, Side which) {
  const char* name = side_name(which);
  if (side.bits < 1 || side.bits > 8) contradiction(name, fmt::format("{} bits; 1 to 8 are possible", side.bits));
  if (!(side.outliers >= 0.0 && side.outliers < 0.5)) {
    contradiction(name, fmt::format("outlier fraction {}; it must be at least 0 and below 0.5 (50 %)", side.outliers));
  }
  if (side.post_rope && which == Side::Value) contradiction(name, "rope=post is for keys; values are not rotated");
  if (side.codebook != CodebookKind::Nuq && side.codebook != CodebookKind::Vector) {
    const std::string kind = word_of(kCodebookWords, side.codebook);
    const char* word = side.qnorm                           ? "qnorm"
                       : side.share != Share::Layer         ? "share"
                       : side.weights != FitWeights::Fisher ? "weights"
                                                            : nullptr;
    if (word) contradiction(name, fmt::format("{} is for fitted codebooks (nuq); {} is not fitted", word, kind));
  }
  validate_method(side, which);
  if (const auto problem = turbo_problem(side)) contradiction(name, *problem);
  if (const auto problem = vector_problem(side)) contradiction(name, *problem);
  if (const auto problem = rounding_problem(side, which)) contradiction(name, *problem);
}

/// Eviction drops tokens that are quantized by themselves.
void validate_evicted(const Recipe& recipe) {
  for (const Side which : kSides) {
    const SideRecipe& side = recipe.side(which);
    if (side.range == RangeKind::Window)
      contradiction(side_name(which), "range=window is an oracle of the whole window; evict= drops parts of it");
    if (side.axis == Axis::ChannelGroup)
      contradiction(side_name(which),
                    "evict= drops single tokens, but on axis channel-group tokens are quantized, and kept, in groups");
    if (codes_blocks(side))
      contradiction(side_name(which),
                    fmt::format("evict= drops single tokens, but {} codes them in blocks", short_form(side.vector)));
    if (exact_window(recipe, which).waits())
      contradiction(side_name(which),
                    "evict= needs tokens that are quantized as they come; recent= and flush= (kivi) "
                    "let them wait");
  }
}

/// Codes of a tier become those of the next by a table, and by nothing else: ranges and exact values stay.
void validate_tiered(const Recipe& recipe) {
  if (recipe.evicts()) {
    fail(ErrorKind::Usage,
         "recipe: evict= and tiers both choose tokens by attention; what drops the last of the tiers is keep=F%");
  }
  if (recipe.key.bits != recipe.value.bits) {
    fail(ErrorKind::Usage, fmt::format("recipe: tiers need as many bits for keys as for values; here are {} and {}",
                                       recipe.key.bits, recipe.value.bits));
  }
  for (const Side which : kSides) {
    const SideRecipe& side = recipe.side(which);
    const std::string reason =
        has_own_format(side.codebook)
            ? fmt::format("{} has no codes that a table could turn into fewer bits", codebook_name(side))
        : side.range == RangeKind::Window     ? "range=window is an oracle of its own"
        : exact_window(recipe, which).waits() ? "recent=, flush= and groups of tokens (kivi) let tokens wait"
        : !is_streaming(side) ? "groups of channels, zero= and rule= give a token ranges that tiers do not know"
        : !has_plain_codes(side) || side.half_bit
            ? "widths=pair, levels= and rotate= (kvq2 and the like) give a token more than bits"
        : side.rounding.uses_blocks()
            ? "feedback and icm (kvq2 and the like) choose codes together, which re-encoding would undo"
            : "";
    if (!reason.empty()) {
      contradiction(
          side_name(which),
          fmt::format("tiers are for nuq, int and nf with thresholds per channel or one range per token: {}", reason));
    }
  }
  validate_tiers(recipe.tiers, recipe.key.bits);
}

}  // namespace

SideRecipe default_side(Side side) {
  SideRecipe recipe;
  recipe.axis = side == Side::Key ? Axis::Channel : Axis::Token;
  recipe.range = side == Side::Key ? RangeKind::Static : RangeKind::Online;
  return recipe;
}

void validate(const Recipe& recipe) {
  validate_eviction(recipe.eviction);
  if (!recipe.quantized && !(recipe.tiers == TierRecipe{}))
    fail(ErrorKind::Usage, "recipe: tiers are of bits, but nothing is quantized");
  if (!recipe.quantized) return;
  validate_side(recipe.key, Side::Key);
  validate_side(recipe.value, Side::Value);
  if (recipe.sinks < 0 || recipe.sinks > 16) {
    fail(ErrorKind::Usage, fmt::format("recipe: {} sinks; 0 to 16 are possible", recipe.sinks));
  }
  if (recipe.evicts()) validate_evicted(recipe);
  if (!recipe.tiered()) return validate_tiers(recipe.tiers, 0);
  validate_tiered(recipe);
}

std::string format_percent(double fraction) {
  if (fraction == 0.0) return "0";
  // The shortest decimal of the fraction with its point moved by two places: exact, unlike 100 * fraction.
  std::array<char, 64> buffer{};
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), fraction, std::chars_format::scientific).ptr;
  const std::string_view text(buffer.data(), static_cast<std::size_t>(end - buffer.data()));
  const auto e = text.find('e');
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c != '.') digits += c;
  }
  int exponent = 0;
  const auto exponent_text = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  int point = exponent + 2 + 1;  // digits before the point
  if (point <= 0) digits.insert(0, static_cast<std::size_t>(1 - point), '0'), point = 1;
  if (static_cast<int>(digits.size()) < point) digits.append(static_cast<std::size_t>(point) - digits.size(), '0');
  if (static_cast<int>(digits.size()) > point) digits.insert(static_cast<std::size_t>(point), 1, '.');
  return digits;
}

std::optional<double> parse_percent(std::string_view digits) {
  const bool plain =
      !digits.empty() && digits.front() != '.' && digits.back() != '.' &&
      std::all_of(digits.begin(), digits.end(), [](char c) { return (c >= '0' && c <= '9') || c == '.'; });
  if (!plain || std::count(digits.begin(), digits.end(), '.') > 1) return std::nullopt;
  const std::string scientific = std::string(digits) + "e-2";
  double value = 0.0;
  const auto result = std::from_chars(scientific.data(), scientific.data() + scientific.size(), value);
  if (result.ec != std::errc() || result.ptr != scientific.data() + scientific.size()) return std::nullopt;
  return value;
}

}  // namespace kvq
