#include <kvq/artifacts/recipe_toml.h>

#include <fmt/format.h>

#include <kvq/config/toml_table.h>
#include <kvq/core/error.h>
#include <kvq/quant/recipe_words.h>

namespace kvq {

namespace {

/// TOML tells integers from floats; 0 must be written 0.0. Shortest form that reads back as the same double.
std::string toml_float(double value) {
  std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string side_to_toml(Side which, const SideRecipe& side) {
  std::string text = fmt::format("\n[{}]\n", side_name(which));
  text += fmt::format("codebook = \"{}\"\n", word_of(kCodebookWords, side.codebook));
  text += fmt::format("bits = {}\n", side.bits);
  text += fmt::format("axis = \"{}\"\n", word_of(kAxisWords, side.axis));
  text += fmt::format("range = \"{}\"\n", word_of(kRangeWords, side.range));
  if (which == Side::Key) text += fmt::format("rope = \"{}\"\n", word_of(kRopeWords, side.post_rope));
  text += fmt::format("outliers = {}\n", toml_float(side.outliers));
  if (which == Side::Key) text += fmt::format("cap = {}\n", toml_float(side.cap));
  text += fmt::format("weights = \"{}\"\n", word_of(kWeightWords, side.weights));
  text += fmt::format("share = \"{}\"\n", word_of(kShareWords, side.share));
  text += fmt::format("qnorm = {}\n", side.qnorm);
  return text;
}

template <class Enum, std::size_t kCount>
void read_word(const TomlTable& table, const std::string& key, const Words<Enum, kCount>& words, Enum& value) {
  const std::optional<std::string> word = table.text(key);
  if (!word) return;
  const std::optional<Enum> found = find_word(words, *word);
  if (!found) table.refuse(key, fmt::format("is '{}'; known: {}", *word, list_words(words)));
  value = *found;
}

int small_integer(const TomlTable& table, const std::string& key, std::int64_t value) {
  if (value < -1000000 || value > 1000000) table.refuse(key, fmt::format("is {}, out of all reason", value));
  return static_cast<int>(value);
}

SideRecipe side_from_toml(const TomlTable& table, Side which) {
  SideRecipe side = default_side(which);
  if (!table.text("codebook"))
    table.refuse("codebook", fmt::format("is missing; known: {}", list_words(kCodebookWords)));
  read_word(table, "codebook", kCodebookWords, side.codebook);
  const std::optional<std::int64_t> bits = table.integer("bits");
  if (!bits) table.refuse("bits", "is missing; 1 to 8 are possible");
  side.bits = small_integer(table, "bits", *bits);
  read_word(table, "axis", kAxisWords, side.axis);
  side.range = side.axis == Axis::Channel ? RangeKind::Static : RangeKind::Online;
  read_word(table, "range", kRangeWords, side.range);
  if (which == Side::Key) read_word(table, "rope", kRopeWords, side.post_rope);
  side.outliers = table.number("outliers").value_or(side.outliers);
  if (which == Side::Key) side.cap = table.number("cap").value_or(side.cap);
  read_word(table, "weights", kWeightWords, side.weights);
  read_word(table, "share", kShareWords, side.share);
  side.qnorm = table.flag("qnorm").value_or(side.qnorm);
  table.reject_unknown();
  return side;
}

Recipe from_table(const TomlTable& table, const std::string& origin) {
  Recipe recipe;
  recipe.quantized = table.flag("quantized").value_or(true);
  if (const auto sinks = table.integer("sinks")) recipe.sinks = small_integer(table, "sinks", *sinks);
  const std::optional<TomlTable> key = table.table("key"), value = table.table("value");
  table.reject_unknown();
  if (!recipe.quantized) {
    if (table.integer("sinks")) table.refuse("sinks", "keeps tokens exact, but quantized is false: all are");
    if (key) table.refuse("key", "says how to quantize, but quantized is false");
    if (value) table.refuse("value", "says how to quantize, but quantized is false");
    return parse_recipe("none");
  }
  if (!key) table.refuse("key", "is missing: a table [key] says how keys are quantized");
  if (!value) table.refuse("value", "is missing: a table [value] says how values are quantized");
  recipe.key = side_from_toml(*key, Side::Key);
  recipe.value = side_from_toml(*value, Side::Value);
  try {
    validate(recipe);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("{}: {}", origin, error.what()));
  }
  return recipe;
}

}  // namespace

std::string recipe_to_toml(const Recipe& recipe) {
  const std::string title = fmt::format("# {}\n", short_form(recipe));
  if (!recipe.quantized) return title + "quantized = false\n";
  return title + fmt::format("sinks = {}\n", recipe.sinks) + side_to_toml(Side::Key, recipe.key) +
         side_to_toml(Side::Value, recipe.value);
}

Recipe recipe_from_toml(const std::string& toml, const std::string& origin) {
  return from_table(TomlTable::parse(toml, origin), origin);
}

Recipe resolve_recipe(const std::string& argument) {
  if (!argument.ends_with(".toml")) return parse_recipe(argument);
  return from_table(TomlTable::read(argument), argument);
}

}  // namespace kvq
