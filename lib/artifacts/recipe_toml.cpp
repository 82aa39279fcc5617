#include <kvq/artifacts/recipe_toml.h>

#include <cmath>

#include <fmt/format.h>

#include <kvq/config/toml_table.h>
#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/quant/eviction_words.h>
#include <kvq/quant/method_words.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/tier_words.h>
#include <kvq/quant/turbo_recipe.h>

namespace kvq {

namespace {

/// TOML tells integers from floats; 0 must be written 0.0. Shortest form that reads back as the same double.
std::string toml_float(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

/// Only where a recipe rounds otherwise than KVQuant: all of it then.
std::string rounding_to_toml(Side which, const SideRecipe& side) {
  const RoundingRecipe& rounding = side.rounding;
  const SideRecipe plain;
  if (rounding == plain.rounding && side.widths == plain.widths && side.levels == 0 && side.rotation == plain.rotation)
    return "";
  std::string text;
  if (which == Side::Key) text += fmt::format("widths = \"{}\"\n", word_of(kWidthsWords, side.widths));
  if (which == Side::Value) {
    text += fmt::format("levels = {}\n", code_levels(side));
    text += fmt::format("rotate = \"{}\"\n", word_of(kRotationWords, side.rotation));
  }
  text += fmt::format("feedback = {}\n", rounding.feedback);
  text += fmt::format("icm = {}\n", rounding.icm);
  if (rounding.metric != RoundingMetric::Fisher)
    text += fmt::format("metric = \"{}\"\n", word_of(kMetricWords, rounding.metric));
  text += fmt::format("order = \"{}\"\n", word_of(kOrderWords, rounding.order));
  text += fmt::format("damp = {}\n", toml_float(rounding.damp));
  return text + fmt::format("clip = {}\n", toml_float(rounding.clip));
}

/// All that turbo knows.
std::string turbo_to_toml(const SideRecipe& side) {
  if (side.codebook != CodebookKind::Turbo) return "";
  const TurboOptions& options = side.turbo;
  std::string text = fmt::format("rotation = \"{}\"\n", word_of(kTurboRotationWords, options.hadamard));
  text += fmt::format("marginal = \"{}\"\n", word_of(kMarginalWords, options.marginal));
  text += fmt::format("norm = \"{}\"\n", word_of(kNormWords, options.norm));
  text += fmt::format("qjl = {}\n", options.qjl);
  if (options.outlier_channels != 0) {
    text += fmt::format("outlier-channels = {}\n", options.outlier_channels);
    text += fmt::format("outlier-bits = {}\n", options.outlier_bits);
  }
  return text + fmt::format("seed = {}\n", options.seed);
}

std::string side_to_toml(Side which, const SideRecipe& side) {
  std::string text = fmt::format("\n[{}]\n", side_name(which));
  text += fmt::format("codebook = \"{}\"\n", word_of(kCodebookWords, side.codebook));
  if (side.codebook == CodebookKind::Vector) text += fmt::format("codec = \"{}\"\n", long_form(side.vector));
  text += fmt::format("bits = {}\n", side.half_bit ? side.bits + 0.5 : side.bits);
  text += fmt::format("axis = \"{}\"\n", word_of(kAxisWords, side.axis));
  if (side.group != 0) text += fmt::format("group = {}\n", side.group);
  text += fmt::format("range = \"{}\"\n", word_of(kRangeWords, side.range));
  if (side.integer_zero) text += fmt::format("zero = \"{}\"\n", word_of(kZeroWords, true));
  if (which == Side::Key) text += fmt::format("rope = \"{}\"\n", word_of(kRopeWords, side.post_rope));
  text += fmt::format("outliers = {}\n", toml_float(side.outliers));
  if (side.rule != OutlierRule::Usual) text += fmt::format("rule = \"{}\"\n", word_of(kRuleWords, side.rule));
  if (which == Side::Key || side.cap > 0) text += fmt::format("cap = {}\n", toml_float(side.cap));
  text += fmt::format("weights = \"{}\"\n", word_of(kWeightWords, side.weights));
  text += side.share == Share::Channels ? fmt::format("share = \"{}\"\n", side.share_channels)
                                        : fmt::format("share = \"{}\"\n", word_of(kShareWords, side.share));
  text += fmt::format("qnorm = {}\n", side.qnorm);
  if (side.recent != 0) text += fmt::format("recent = {}\n", side.recent);
  if (side.flush != 0) text += fmt::format("flush = {}\n", side.flush);
  return text + rounding_to_toml(which, side) + turbo_to_toml(side);
}

/// All that the rule knows.
std::string eviction_to_toml(const EvictionRecipe& eviction) {
  if (eviction.rule == EvictionRule::None) return "";
  std::string text = fmt::format("\n[eviction]\nrule = \"{}\"\n", word_of(kEvictionWords, eviction.rule));
  text += eviction.tokens != 0 ? fmt::format("budget = {}\n", eviction.tokens)
                               : fmt::format("budget = {}\n", toml_float(eviction.share));
  if (eviction.rule == EvictionRule::FirstRecent) {
    text += fmt::format("first = {}\n", eviction.first);
    text += fmt::format("positions = \"{}\"\n", word_of(kPositionWords, eviction.cache_positions));
  }
  if (eviction.rule == EvictionRule::H2o) text += fmt::format("heavy = {}\n", toml_float(eviction.heavy));
  if (chooses_at_prompt_end(eviction.rule)) {
    text += fmt::format("observe = {}\n", eviction.observe);
    text += fmt::format("pool = \"{}\"\n", word_of(kPoolingWords, eviction.pooling));
    text += fmt::format("kernel = {}\n", eviction.kernel);
  }
  if (eviction.rule == EvictionRule::PyramidKv) text += fmt::format("beta = {}\n", toml_float(eviction.beta));
  return text;
}

std::string tiers_to_toml(const TierRecipe& tiers) {
  if (!tiers.any()) return "";
  std::string text = fmt::format("\n[tiers]\nby = \"{}\"\n", word_of(kTierWeightWords, tiers.by));
  text += fmt::format("per = \"{}\"\n", word_of(kTierListWords, tiers.per_head));
  if (tiers.mid != 0) text += fmt::format("mid = {}\n", tiers.mid);
  text += fmt::format("lo = {}\n", tiers.low);
  text += fmt::format("hi-share = {}\n", toml_float(tiers.high_share));
  if (tiers.mid != 0) text += fmt::format("mid-share = {}\n", toml_float(tiers.mid_share));
  if (tiers.by == TierWeights::Window) return text;
  text += fmt::format("keep = {}\n", toml_float(tiers.keep));
  text += fmt::format("newest = {}\n", tiers.newest);
  text += fmt::format("decay = {}\n", toml_float(tiers.decay));
  if (tiers.hysteresis) text += fmt::format("hysteresis = {}\n", toml_float(*tiers.hysteresis));
  return text;
}

template <class Enum, std::size_t kCount>
void read_word(const TomlTable& table, const std::string& key, const Words<Enum, kCount>& words, Enum& value) {
  const std::optional<std::string> word = table.text(key);
  if (!word) return;
  const std::optional<Enum> found = find_word(words, *word);
  if (!found) table.refuse(key, fmt::format("is '{}'; known: {}", shortened(*word), list_words(words)));
  value = *found;
}

int small_integer(const TomlTable& table, const std::string& key, std::int64_t value) {
  if (value < -1000000 || value > 1000000) table.refuse(key, fmt::format("is {}, out of all reason", value));
  return static_cast<int>(value);
}

void read_count(const TomlTable& table, const std::string& key, int& value) {
  if (const auto count = table.integer(key)) value = small_integer(table, key, *count);
}

/// A word, or a number of channels.
void read_share(const TomlTable& table, SideRecipe& side) {
  const std::optional<std::string> word = table.text("share");
  const std::optional<int> channels = word ? parse_count(*word) : std::nullopt;
  if (word && !channels && !find_word(kShareWords, *word)) {
    table.refuse("share",
                 fmt::format("is '{}'; known: {}, or a number of channels", shortened(*word), list_words(kShareWords)));
  }
  if (!channels) return read_word(table, "share", kShareWords, side.share);
  side.share = Share::Channels;
  side.share_channels = *channels;
}

/// A whole number, or one and a half: 1.5. Block formats have their own.
void read_bits(const TomlTable& table, SideRecipe& side) {
  const std::optional<double> bits = table.number("bits");
  if (!bits && (is_block_format(side.codebook) || side.codebook == CodebookKind::Vector)) return;
  if (!bits) table.refuse("bits", "is missing; 1 to 8 are possible");
  side.half_bit = *bits - std::floor(*bits) == 0.5;
  const double whole = side.half_bit ? std::floor(*bits) : *bits;
  if (whole != std::floor(whole)) table.refuse("bits", fmt::format("is {}; whole and half bits are possible", *bits));
  if (std::abs(whole) > 1000) table.refuse("bits", fmt::format("is {}; 1 to 8 are possible", *bits));
  side.bits = static_cast<int>(whole);
}

void read_rounding(const TomlTable& table, Side which, SideRecipe& side) {
  RoundingRecipe& rounding = side.rounding;
  if (which == Side::Key) read_word(table, "widths", kWidthsWords, side.widths);
  if (which == Side::Value) {
    read_word(table, "rotate", kRotationWords, side.rotation);
    if (const auto levels = table.integer("levels")) {
      const int wanted = small_integer(table, "levels", *levels);
      if (wanted < 1) table.refuse("levels", fmt::format("is {}; it must be positive", wanted));
      side.levels = side.bits >= 1 && side.bits <= 8 && wanted == 1 << side.bits ? 0 : wanted;
    }
  }
  rounding.feedback = table.flag("feedback").value_or(rounding.feedback);
  if (const auto passes = table.integer("icm")) rounding.icm = small_integer(table, "icm", *passes);
  read_word(table, "metric", kMetricWords, rounding.metric);
  read_word(table, "order", kOrderWords, rounding.order);
  rounding.damp = table.number("damp").value_or(rounding.damp);
  rounding.clip = table.number("clip").value_or(rounding.clip);
}

void read_turbo(const TomlTable& table, TurboOptions& options) {
  read_word(table, "rotation", kTurboRotationWords, options.hadamard);
  read_word(table, "marginal", kMarginalWords, options.marginal);
  read_word(table, "norm", kNormWords, options.norm);
  options.qjl = table.flag("qjl").value_or(options.qjl);
  read_count(table, "outlier-channels", options.outlier_channels);
  read_count(table, "outlier-bits", options.outlier_bits);
  read_count(table, "seed", options.seed);
}

/// Says everything that codebook vector has; `bits` may say its bits again.
void read_codec(const TomlTable& table, SideRecipe& side) {
  const std::optional<std::string> codec = table.text("codec");
  if (side.codebook != CodebookKind::Vector) {
    if (codec) table.refuse("codec", fmt::format("is for codebook vector, not {}", codebook_name(side)));
    return;
  }
  if (!codec) table.refuse("codec", "is missing: scalarB, deltaB or pq with their words, such as \"delta3:anchor=64\"");
  try {
    side.vector = parse_vector_recipe(*codec);
  } catch (const Error& error) {
    table.refuse("codec", error.what());
  }
  if (!table.number("bits")) side.bits = side.vector.bits;
  side.share = usual_share(side);
}

SideRecipe side_from_toml(const TomlTable& table, Side which) {
  SideRecipe side;
  if (!table.text("codebook"))
    table.refuse("codebook", fmt::format("is missing; known: {}", list_words(kCodebookWords)));
  read_word(table, "codebook", kCodebookWords, side.codebook);
  side = usual_side(which, side.codebook);
  read_bits(table, side);
  if (table.text("axis")) {
    read_word(table, "axis", kAxisWords, side.axis);
    if (!has_own_format(side.codebook)) {
      side.range = usual_range(side.axis);
      side.group = is_grouped(side.axis) ? kUsualGroup : 0;
    }
  }
  read_codec(table, side);
  read_count(table, "group", side.group);
  read_word(table, "range", kRangeWords, side.range);
  read_word(table, "zero", kZeroWords, side.integer_zero);
  if (which == Side::Key) read_word(table, "rope", kRopeWords, side.post_rope);
  side.outliers = table.number("outliers").value_or(side.outliers);
  read_word(table, "rule", kRuleWords, side.rule);
  side.rule = canonical_rule(side, side.rule);
  side.cap = table.number("cap").value_or(side.cap);
  read_word(table, "weights", kWeightWords, side.weights);
  read_share(table, side);
  side.qnorm = table.flag("qnorm").value_or(side.qnorm);
  read_count(table, "recent", side.recent);
  read_count(table, "flush", side.flush);
  if (side.flush == usual_flush(side)) side.flush = 0;
  read_rounding(table, which, side);
  if (side.codebook == CodebookKind::Turbo) read_turbo(table, side.turbo);
  table.reject_unknown();
  return side;
}

/// budget = 512: tokens; budget = 0.25: a share of them.
void read_budget(const TomlTable& table, EvictionRecipe& eviction) {
  const std::optional<double> budget = table.number("budget");
  if (!budget) table.refuse("budget", "is missing: tokens (512) or a share of them (0.25)");
  if (*budget > 1.0 && *budget != std::floor(*budget))
    table.refuse("budget",
                 fmt::format("is {}; a number of tokens (512) or a share up to 1.0 (0.25) is needed", *budget));
  if (table.is_integer("budget")) {
    eviction.tokens = small_integer(table, "budget", *table.integer("budget"));
    if (eviction.tokens < 1)
      table.refuse("budget", fmt::format("is {}; one token at least is needed", eviction.tokens));
  } else {
    eviction.share = *budget;
  }
}

EvictionRecipe eviction_from_toml(const TomlTable& table) {
  EvictionRecipe eviction;
  if (!table.text("rule")) table.refuse("rule", fmt::format("is missing; known: {}", list_words(kEvictionWords)));
  read_word(table, "rule", kEvictionWords, eviction.rule);
  eviction = usual_eviction(eviction.rule);
  read_budget(table, eviction);
  read_count(table, "first", eviction.first);
  read_word(table, "positions", kPositionWords, eviction.cache_positions);
  eviction.heavy = table.number("heavy").value_or(eviction.heavy);
  read_count(table, "observe", eviction.observe);
  read_word(table, "pool", kPoolingWords, eviction.pooling);
  read_count(table, "kernel", eviction.kernel);
  eviction.beta = table.number("beta").value_or(eviction.beta);
  table.reject_unknown();
  return eviction;
}

TierRecipe tiers_from_toml(const TomlTable& table) {
  TierWeights by = TierWeights::Past;
  read_word(table, "by", kTierWeightWords, by);
  TierRecipe tiers = usual_tiers(table.number("mid").has_value(), by);
  if (!table.integer("lo")) table.refuse("lo", "is missing: bits of the last tier, 1 to 8");
  read_count(table, "lo", tiers.low);
  read_count(table, "mid", tiers.mid);
  if (tiers.low == 0) table.refuse("lo", "is 0; 1 to 8 bits are possible");
  if (tiers.mid == 0 && table.integer("mid")) table.refuse("mid", "is 0; 1 to 8 bits are possible, or no mid at all");
  read_word(table, "per", kTierListWords, tiers.per_head);
  tiers.high_share = table.number("hi-share").value_or(tiers.high_share);
  tiers.mid_share = table.number("mid-share").value_or(tiers.mid_share);
  tiers.keep = table.number("keep").value_or(tiers.keep);
  read_count(table, "newest", tiers.newest);
  tiers.decay = table.number("decay").value_or(tiers.decay);
  tiers.hysteresis = table.number("hysteresis");
  table.reject_unknown();
  return tiers;
}

void check(const Recipe& recipe, const std::string& origin) {
  try {
    validate(recipe);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("{}: {}", origin, error.what()));
  }
}

Recipe from_table(const TomlTable& table, const std::string& origin) {
  Recipe recipe;
  recipe.quantized = table.flag("quantized").value_or(true);
  if (const auto sinks = table.integer("sinks")) recipe.sinks = small_integer(table, "sinks", *sinks);
  const std::optional<TomlTable> key = table.table("key"), value = table.table("value"),
                                 eviction = table.table("eviction"), tiers = table.table("tiers");
  table.reject_unknown();
  if (eviction) recipe.eviction = eviction_from_toml(*eviction);
  if (tiers && !recipe.quantized) table.refuse("tiers", "are of bits, but quantized is false");
  if (tiers) recipe.tiers = tiers_from_toml(*tiers);
  if (!recipe.quantized) {
    if (table.integer("sinks")) table.refuse("sinks", "keeps tokens exact, but quantized is false: all are");
    if (key) table.refuse("key", "says how to quantize, but quantized is false");
    if (value) table.refuse("value", "says how to quantize, but quantized is false");
    const EvictionRecipe evicted = recipe.eviction;
    recipe = parse_recipe("none");
    recipe.eviction = evicted;
    check(recipe, origin);
    return recipe;
  }
  if (!key) table.refuse("key", "is missing: a table [key] says how keys are quantized");
  if (!value) table.refuse("value", "is missing: a table [value] says how values are quantized");
  recipe.key = side_from_toml(*key, Side::Key);
  recipe.value = side_from_toml(*value, Side::Value);
  check(recipe, origin);
  return recipe;
}

}  // namespace

std::string recipe_to_toml(const Recipe& recipe) {
  const std::string title = fmt::format("# {}\n", short_form(recipe));
  const std::string eviction = eviction_to_toml(recipe.eviction);
  if (!recipe.quantized) return title + "quantized = false\n" + eviction;
  return title + fmt::format("sinks = {}\n", recipe.sinks) + side_to_toml(Side::Key, recipe.key) +
         side_to_toml(Side::Value, recipe.value) + eviction + tiers_to_toml(recipe.tiers);
}

Recipe recipe_from_toml(const std::string& toml, const std::string& origin) {
  return from_table(TomlTable::parse(toml, origin), origin);
}

Recipe resolve_recipe(const std::string& argument) {
  if (!argument.ends_with(".toml")) return parse_recipe(argument);
  return from_table(TomlTable::read(argument), argument);
}

}  // namespace kvq
