#include <kvq/quant/recipe_parser.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/quant/eviction_words.h>
#include <kvq/quant/method_words.h>
#include <kvq/quant/recipe.h>
#include <kvq/quant/recipe_named.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/tier_words.h>
#include <kvq/quant/turbo_recipe.h>
namespace kvq {

namespace {

constexpr std::string_view kKnownKinds =
    "nuqB, intB, nfB with B from 1 to 8 and an optional -F% of outliers; kvq1.5, kvq2, kvq3, kvq4; kiviB, atomB, "
    "flexgenB, turboB; scalarB, deltaB, pq; q4_0, q8_0, fp8; adaptive; or none";
constexpr std::string_view kKnownWords =
    "sink=N, qnorm, share=, weights=, key=, value=, rope= (or key-rope=), range=, cap=F%, group=N, rule=, zero=, "
    "recent=N, flush=N";
constexpr std::string_view kKnownCodecWords = "sink=N, share=, weights=, rope= (or key-rope=), recent=N, flush=N";

/// Both sides as far as the text speaks of them; with `only` set, words for the other side are refused.
struct Parser {
  explicit Parser(std::string text, std::optional<Side> side = std::nullopt) : whole(std::move(text)), only(side) {}

  std::string whole;  ///< for messages
  std::optional<Side> only;
  SideRecipe key = default_side(Side::Key), value = default_side(Side::Value);
  std::optional<int> sinks;
  int usual_sinks = Recipe{}.sinks;  ///< where the text does not say
  std::optional<RangeKind> range;
  std::optional<RoundingMetric> metric;
  bool preset = false;  ///< kvq2 and the like: metric= also says what codebooks are weighted by
  MethodWords method;
  EvictionWords eviction;
  TierWords tiers;
  std::string codec;                     ///< scalarB, deltaB, pq; else empty
  std::vector<std::string> codec_words;  ///< its own
  std::set<std::string> seen;

  [[noreturn]] void refuse(const std::string& message) const {
    fail(ErrorKind::Usage, fmt::format("recipe '{}': {}", shortened(whole), message));
  }
  bool applies(Side side) const { return !only || *only == side; }
  template <typename Change>
  void for_sides(Change change) {
    if (applies(Side::Key)) change(key);
    if (applies(Side::Value)) change(value);
  }
  SideRecipe& one_side(Side side, const std::string& word) {
    if (!applies(side))
      refuse(fmt::format("'{}' speaks of the {} side, but stands in the other one", shortened(word), side_name(side)));
    return side == Side::Key ? key : value;
  }
  template <typename Enum, std::size_t kCount>
  Enum choice(const Words<Enum, kCount>& words, const std::string& name, const std::string& argument) const {
    const auto value_of_word = find_word(words, argument);
    if (!value_of_word)
      refuse(fmt::format("'{}={}'; {} can be: {}", name, shortened(argument), name, list_words(words)));
    return *value_of_word;
  }
  double percent(const std::string& what, std::string_view text) const {
    const bool has_sign = !text.empty() && text.back() == '%';
    const auto fraction = has_sign ? parse_percent(text.substr(0, text.size() - 1)) : std::nullopt;
    if (!fraction) refuse(fmt::format("{} '{}' is not a percentage such as 1% or 0.5%", what, shortened(text)));
    return *fraction;
  }

  void parse(std::string_view text);
  void parse_words(std::string_view rest);
  EvictionRecipe evicted() const;
  TierRecipe tiered() const;
  void head(std::string_view text);
  bool rounding_word(const std::string& text, const std::string& name, const std::string& argument);
  bool turbo_word(const std::string& name, const std::string& argument);
  void apply_codec();
  void word(const std::string& text);
  void apply_range();
  void apply_metric();
};

void Parser::parse(std::string_view text) {
  const auto colon = text.find(':');
  head(text.substr(0, colon));
  if (colon != std::string_view::npos) parse_words(text.substr(colon + 1));
  apply_codec();
  if (tiers.adaptive) for_sides([&](SideRecipe& side) { side.bits = tiers.high.value_or(kUsualHighBits); });
  apply_range();
  try {
    method.apply(applies(Side::Key) ? &key : nullptr, applies(Side::Value) ? &value : nullptr);
  } catch (const Error& error) {
    refuse(error.what());
  }
  apply_metric();
}

void Parser::parse_words(std::string_view rest) {
  for (;;) {
    const auto comma = rest.find(',');
    word(std::string(rest.substr(0, comma)));
    if (comma == std::string_view::npos) break;
    rest = rest.substr(comma + 1);
  }
}

EvictionRecipe Parser::evicted() const {
  try {
    return eviction.recipe();
  } catch (const Error& error) {
    refuse(error.what());
  }
}

TierRecipe Parser::tiered() const {
  try {
    return tiers.recipe();
  } catch (const Error& error) {
    refuse(error.what());
  }
}

void Parser::head(std::string_view text) {
  if (text == "adaptive") {  // nuqB-1%, B said by hi=
    tiers.adaptive = true;
    return for_sides([](SideRecipe& side) { side.outliers = 0.01; });
  }
  if (const std::optional<NamedMethod> named = find_named_method(text)) {
    key = named->key, value = named->value;
    usual_sinks = named->sinks;
    method.residual = named->residual;
    if (is_vector_head(text)) codec = text;
    return;
  }
  if (const auto preset_of_key = preset_side(text, Side::Key)) {
    key = *preset_of_key;
    value = *preset_side(text, Side::Value);
    preset = true;
    return;
  }
  const auto digits = text.find_first_of("0123456789");
  const auto kind = find_word(kCodebookWords, text.substr(0, digits));
  if (!kind || is_block_format(*kind) || *kind == CodebookKind::Vector || digits == std::string_view::npos) {
    if (text == "none")
      refuse("'none' stands for a whole recipe; what one side alone costs, kvq-eval perplexity --only-side tells");
    refuse(fmt::format("unknown method '{}'; known: {}", shortened(text), kKnownKinds));
  }
  const std::string_view numbers = text.substr(digits);
  const auto dash = numbers.find('-');
  const std::string_view whole_bits = numbers.substr(0, dash);
  const bool half_bit = *kind == CodebookKind::Nuq && whole_bits.ends_with(".5");
  const std::string_view bits_text = half_bit ? whole_bits.substr(0, whole_bits.size() - 2) : whole_bits;
  int bits = 0;
  const auto end = bits_text.data() + bits_text.size();
  const auto result = std::from_chars(bits_text.data(), end, bits);
  if (result.ec != std::errc() || result.ptr != end || bits < 1 || bits > 8 || bits_text.size() != 1) {
    refuse(fmt::format("bits '{}'; known: {}", shortened(whole_bits), kKnownKinds));
  }
  double outliers = 0.0;
  if (dash != std::string_view::npos) outliers = percent("the share of outliers", numbers.substr(dash + 1));
  if (outliers >= 0.5) refuse(fmt::format("{} % of outliers; it must be below 50 %", format_percent(outliers)));
  if (*kind == CodebookKind::Turbo) key = usual_side(Side::Key, *kind), value = usual_side(Side::Value, *kind);
  for_sides([&](SideRecipe& side) {
    side.codebook = *kind;
    side.bits = bits;
    side.half_bit = half_bit;
    side.outliers = outliers;
  });
}

bool Parser::rounding_word(const std::string& text, const std::string& name, const std::string& argument) {
  WordResult result = WordResult::Unknown;
  std::string problem;
  const auto take = [&](SideRecipe& side) {
    if (result != WordResult::Refused) result = take_rounding_word(side, name, argument, problem);
  };
  if (const auto only_side = side_of_rounding_word(name)) {
    take(one_side(*only_side, text));
  } else {
    for_sides(take);
  }
  if (result == WordResult::Refused) refuse(problem);
  return result == WordResult::Taken;
}

bool Parser::turbo_word(const std::string& name, const std::string& argument) {
  WordResult result = WordResult::Unknown;
  std::string problem;
  for_sides([&](SideRecipe& side) { result = take_turbo_word(side.turbo, name, argument, problem); });
  if (result == WordResult::Refused) refuse(problem);
  return result == WordResult::Taken;
}

void Parser::word(const std::string& text) {
  const auto equals = text.find('=');
  std::string name = text.substr(0, equals);
  if (name == "key-rope") name = "rope";
  if (!seen.insert(name).second) refuse(fmt::format("'{}' is given twice", shortened(name)));
  const std::string argument = equals == std::string::npos ? "" : text.substr(equals + 1);
  if (!codec.empty() && is_vector_word(key.vector, name)) {
    codec_words.push_back(text);
  } else if (name == "qnorm" && equals == std::string::npos) {
    for_sides([](SideRecipe& side) { side.qnorm = true; });
  } else if (name == "sink") {
    int count = -1;
    const auto end = argument.data() + argument.size();
    const auto result = std::from_chars(argument.data(), end, count);
    if (result.ec != std::errc() || result.ptr != end || count < 0 || count > 16) {
      refuse(fmt::format("'{}'; sink takes a number from 0 to 16", shortened(text)));
    }
    sinks = count;
  } else if (name == "share") {
    const auto channels = parse_count(argument);
    const auto word = find_word(kShareWords, argument);
    if (!word && channels.value_or(0) == 0)
      refuse(fmt::format("'{}'; share can be: {} or a number of channels", shortened(text), list_words(kShareWords)));
    for_sides([&](SideRecipe& side) {
      side.share = word.value_or(Share::Channels);
      side.share_channels = word ? 0 : *channels;
    });
  } else if (name == "weights") {
    const FitWeights weights = choice(kWeightWords, name, argument);
    for_sides([&](SideRecipe& side) { side.weights = weights; });
  } else if (name == "key" || name == "value") {
    SideRecipe& side = one_side(name == "key" ? Side::Key : Side::Value, text);
    side.axis = choice(kAxisWords, name, argument);
    side.range = usual_range(side.axis);
    side.group = is_grouped(side.axis) ? kUsualGroup : 0;
  } else if (name == "rope") {
    one_side(Side::Key, text).post_rope = choice(kRopeWords, name, argument);
  } else if (name == "metric") {
    metric = choice(kMetricWords, name, argument);
  } else if (name == "range") {
    range = choice(kRangeWords, name, argument);
  } else if (name == "cap") {
    const double cap = percent("cap", argument);
    if (cap <= 0.0 || cap >= 1.0) refuse(fmt::format("'{}'; cap must be above 0 % and below 100 %", shortened(text)));
    method.cap = cap;
  } else if (std::string problem; method.take(name, argument, problem)) {
    if (!problem.empty()) refuse(fmt::format("'{}'; {}", shortened(text), problem));
  } else if (eviction.take(name, argument, problem)) {
    if (!problem.empty()) refuse(fmt::format("'{}'; {}", shortened(text), problem));
  } else if (tiers.take(name, argument, problem)) {
    if (!problem.empty()) refuse(fmt::format("'{}'; {}", shortened(text), problem));
  } else if (!rounding_word(text, name, argument) && !turbo_word(name, argument)) {
    if (!codec.empty()) {
      refuse(fmt::format("unknown word '{}'; known for {}: {}; {}; {}", shortened(text), codec,
                         known_vector_words(key.vector), kKnownCodecWords, kKnownEvictionWords));
    }
    refuse(fmt::format("unknown word '{}'; known: {}, {}, {}, {}, {}; for scalarB, deltaB and pq: {}", shortened(text),
                       kKnownWords, kKnownEvictionWords, kKnownTierWords, known_rounding_words(), kKnownTurboWords,
                       kKnownCodecWords));
  }
}

/// The codec's words in one go: they depend on each other.
void Parser::apply_codec() {
  if (codec.empty()) return;
  try {
    const VectorRecipe chosen = parse_vector_recipe(with_words(codec, codec_words));
    for_sides([&](SideRecipe& side) {
      side.vector = chosen;
      side.bits = chosen.bits;
    });
  } catch (const Error& error) {
    refuse(error.what());
  }
}

/// `range` comes last because it depends on the axes: static and window go to the sides with one range per channel, and
/// to both when there is none; online must fit every side, since a key side left static would not be what was asked
/// for.
void Parser::apply_range() {
  if (!range) return;
  if (*range == RangeKind::Online || only || (key.axis != Axis::Channel && value.axis != Axis::Channel)) {
    for_sides([&](SideRecipe& side) { side.range = *range; });
    return;
  }
  for_sides([&](SideRecipe& side) {
    if (side.axis == Axis::Channel) side.range = *range;
  });
}

/// Comes last because it reaches what needs a metric. Presets cut gradients; without any, nothing is left to cut.
void Parser::apply_metric() {
  const bool weighted = seen.count("weights") != 0, clipped = seen.count("clip") != 0;
  bool taken = false;
  for_sides([&](SideRecipe& side) {
    if (metric && needs_blocks(side)) {
      side.rounding.metric = *metric;
      taken = true;
    }
    if (metric == RoundingMetric::Query && preset && !weighted && side.codebook == CodebookKind::Nuq)
      side.weights = FitWeights::Query;
    if (needs_metric(side) && !needs_gradients(side) && !clipped) side.rounding.clip = 1.0;
  });
  if (metric && !taken) {
    refuse(
        fmt::format("'metric={}' is for feedback, icm and widths=pair; there is none of them (weights=query is for "
                    "codebooks)",
                    word_of(kMetricWords, *metric)));
  }
}

Recipe parse_split(const std::string& text) {
  const auto slash = text.find('/');
  Parser key(text, Side::Key), value(text, Side::Value);
  if (slash == std::string::npos || text.compare(slash + 1, 2, "V=") != 0) {
    key.refuse("two sides are written K=…/V=…, keys first");
  }
  key.parse(std::string_view(text).substr(2, slash - 2));
  value.parse(std::string_view(text).substr(slash + 3));
  if (key.sinks && value.sinks && *key.sinks != *value.sinks) {
    key.refuse(fmt::format("sink={} for keys, sink={} for values; they must agree", *key.sinks, *value.sinks));
  }
  Recipe recipe{true, key.key, value.value};
  recipe.sinks = key.sinks.value_or(value.sinks.value_or(std::max(key.usual_sinks, value.usual_sinks)));
  if (key.eviction.any && value.eviction.any && !(key.eviction == value.eviction))
    key.refuse("keys and values are evicted together: evict= and its words stand in one side, or alike in both");
  recipe.eviction = (key.eviction.any ? key : value).evicted();
  const auto speaks = [](const Parser& side) { return side.tiers.any || side.tiers.adaptive; };
  if (speaks(key) && speaks(value) && !(key.tiers == value.tiers))
    key.refuse("a token's keys and values have the same tier: lo= and its words stand in one side, or alike in both");
  recipe.tiers = (speaks(key) ? key : value).tiered();
  return recipe;
}

/// `none` and what is evicted of it.
Recipe parse_unquantized(const std::string& text) {
  Parser words(text);
  if (text.size() > std::string_view("none").size()) words.parse_words(std::string_view(text).substr(5));
  for (const std::string& word : words.seen) {
    EvictionWords known;
    std::string ignored;
    if (!known.take(word, "", ignored))
      words.refuse(
          fmt::format("'{}' says how to quantize, but none does not; known here: {}", word, kKnownEvictionWords));
  }
  Recipe recipe{false, default_side(Side::Key), default_side(Side::Value), 0, {}, {}};
  recipe.eviction = words.evicted();
  return recipe;
}

}  // namespace

std::string with_words(const std::string& head, const std::vector<std::string>& words) {
  return words.empty() ? head : fmt::format("{}:{}", head, fmt::join(words, ","));
}

Recipe parse_unchecked(const std::string& text) {
  if (text == "none" || text.starts_with("none:")) return parse_unquantized(text);
  if (text.starts_with("K=")) return parse_split(text);
  Parser both(text);
  both.parse(text);
  Recipe recipe{true, both.key, both.value};
  recipe.sinks = both.sinks.value_or(both.usual_sinks);
  recipe.eviction = both.evicted();
  recipe.tiers = both.tiered();
  return recipe;
}

}  // namespace kvq
