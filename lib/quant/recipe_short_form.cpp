#include <kvq/quant/recipe.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/quant/eviction_words.h>
#include <kvq/quant/method_words.h>
#include <kvq/quant/recipe_named.h>
#include <kvq/quant/recipe_parser.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/tier_words.h>
#include <kvq/quant/turbo_recipe.h>

namespace kvq {

namespace {

std::string head_of(const SideRecipe& side) {
  if (side.codebook == CodebookKind::Vector) return vector_head(side.vector);
  const std::string kind = word_of(kCodebookWords, side.codebook);
  if (is_block_format(side.codebook)) return kind;
  const std::string head = fmt::format("{}{}{}", kind, side.bits, side.half_bit ? ".5" : "");
  return side.outliers > 0.0 ? fmt::format("{}-{}%", head, format_percent(side.outliers)) : head;
}

/// Words that differ from the defaults, for one side or (`other` given) for both at once.
std::vector<std::string> words_of(const SideRecipe& side, Side which, const SideRecipe* other) {
  std::vector<std::string> words;
  if (side.codebook == CodebookKind::Vector) words = vector_words(side.vector);
  const auto axis_word = [&](const SideRecipe& s, Side w) {
    if (s.axis != usual_side(w, s.codebook).axis)
      words.push_back(fmt::format("{}={}", side_name(w), word_of(kAxisWords, s.axis)));
  };
  axis_word(side, which);
  if (other) axis_word(*other, Side::Value);
  const auto usual = [](const SideRecipe& s) { return s.range == usual_range(s.axis) || s.range == RangeKind::None; };
  if (which == Side::Key) {
    const bool usual_post = is_block_format(side.codebook);  // q4_0, q8_0, fp8 by name
    if (side.post_rope != usual_post) words.push_back("rope=" + word_of(kRopeWords, side.post_rope));
  }
  if (!usual(side)) {
    words.push_back("range=" + word_of(kRangeWords, side.range));
  } else if (other && !usual(*other)) {
    words.push_back("range=" + word_of(kRangeWords, other->range));
  }
  if (side.cap > 0.0) {
    words.push_back("cap=" + format_percent(side.cap) + "%");
  } else if (other && other->cap > 0.0) {
    words.push_back("cap=" + format_percent(other->cap) + "%");
  }
  if (side.weights != FitWeights::Fisher) words.push_back("weights=" + word_of(kWeightWords, side.weights));
  if (side.share == Share::Channels) {
    words.push_back(fmt::format("share={}", side.share_channels));
  } else if (side.share != usual_share(side)) {
    words.push_back("share=" + word_of(kShareWords, side.share));
  }
  if (side.qnorm) words.emplace_back("qnorm");
  add_method_words(words, side, other);
  append_rounding_words(words, side, other);
  append_turbo_words(words, side.turbo);
  return words;
}

/// A text that is no recipe says nothing.
bool says(const std::string& text, const Recipe& recipe) {
  try {
    return parse_unchecked(text) == recipe;
  } catch (const Error&) {
    return false;
  }
}

std::string_view name_of(std::string_view word) { return word.substr(0, word.find('=')); }

/// A preset and the words that change it; nullopt: no preset is near. `words` is what the recipe has.
std::optional<std::string> preset_form(const Recipe& recipe, const std::vector<std::string>& words) {
  static const std::vector<std::string> kOff = {"widths=flat", "rotate=none", "feedback=off", "icm=0", "clip=1"};
  for (const std::string_view name : kPresetNames) {
    const SideRecipe key = *preset_side(name, Side::Key), value = *preset_side(name, Side::Value);
    const auto same_bits = [](const SideRecipe& a, const SideRecipe& b) {
      return a.bits == b.bits && a.half_bit == b.half_bit;
    };
    if (!same_bits(recipe.key, key) || !same_bits(recipe.value, value)) continue;  // no word changes them
    const std::vector<std::string> usual = words_of(key, Side::Key, &value);
    std::vector<std::string> changes;
    for (const std::string& word : words) {
      if (std::find(usual.begin(), usual.end(), word) == usual.end()) changes.push_back(word);
    }
    const auto is_named = [](std::string_view wanted) {
      return [wanted](const std::string& word) { return name_of(word) == wanted; };
    };
    for (const std::string& word : usual) {
      if (std::any_of(words.begin(), words.end(), is_named(name_of(word)))) continue;
      const auto off = std::find_if(kOff.begin(), kOff.end(), is_named(name_of(word)));
      changes.push_back(off != kOff.end() ? *off : fmt::format("levels={}", 1 << recipe.value.bits));
    }
    // metric=query says these along.
    std::vector<std::string> fewer = changes;
    std::erase(fewer, "weights=query");
    std::erase(fewer, "clip=1");
    for (const std::vector<std::string>& list : {fewer, changes}) {
      std::string text = with_words(std::string(name), list);
      if (says(text, recipe)) return text;
    }
  }
  return std::nullopt;
}

/// Without eviction.
std::string quantizing_form(const Recipe& recipe) {
  if (!recipe.quantized) return "none";
  for (const std::string& name : named_methods()) {
    if (parse_unchecked(name) == recipe) return name;
  }
  const std::string sinks = fmt::format("sink={}", recipe.sinks);
  const auto no_sinks = [](CodebookKind kind) { return has_own_format(kind) && kind != CodebookKind::Vector; };
  const bool no_usual_sinks = no_sinks(recipe.key.codebook) && no_sinks(recipe.value.codebook);
  const bool default_sinks = recipe.sinks == (no_usual_sinks ? 0 : Recipe{}.sinks);
  std::vector<std::string> words = words_of(recipe.key, Side::Key, &recipe.value);
  if (!default_sinks) words.push_back(sinks);
  const std::optional<std::string> by_preset = preset_form(recipe, words);
  std::string both = with_words(head_of(recipe.key), words);
  if (says(both, recipe)) {
    return by_preset && by_preset->size() < both.size() ? *by_preset : both;
  }
  if (by_preset) return *by_preset;  // else the sides differ in more than shared words can say
  std::vector<std::string> key_words = words_of(recipe.key, Side::Key, nullptr);
  if (!default_sinks) key_words.push_back(sinks);
  return fmt::format("K={}/V={}", with_words(head_of(recipe.key), key_words),
                     with_words(head_of(recipe.value), words_of(recipe.value, Side::Value, nullptr)));
}

}  // namespace

Recipe parse_recipe(const std::string& text) {
  Recipe recipe = parse_unchecked(text);
  try {
    validate(recipe);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("'{}': {}", text, error.what()));
  }
  return recipe;
}

std::string short_form(const Recipe& recipe) {
  Recipe without = recipe;
  without.eviction = {};
  without.tiers = {};
  std::string text = quantizing_form(without);
  std::vector<std::string> words = recipe.evicts() ? eviction_words(recipe.eviction) : tier_words(recipe.tiers);
  if (words.empty()) return text;
  if (const std::string plain = fmt::format("nuq{}-1%", recipe.key.bits);
      recipe.tiered() && (text == plain || text.starts_with(plain + ":"))) {
    words.insert(words.begin(), fmt::format("hi={}", recipe.key.bits));
    text.replace(0, plain.size(), "adaptive");
  }
  std::size_t end = text.find("/V=");  // K=…/V=…: behind the keys' words
  if (end == std::string::npos) end = text.size();
  const char* separator = text.find(':') < end ? "," : ":";
  return text.insert(end, separator + fmt::format("{}", fmt::join(words, ",")));
}

std::string slug(const Recipe& recipe) {
  constexpr std::size_t kSlugBytes = 160;
  std::string result;
  for (const char c : short_form(recipe)) {
    switch (c) {
      case '%':
        result += "pct";
        break;
      case '=':
        result += '-';
        break;
      case ':':
      case ',':
        result += '_';
        break;
      case '/':
        result += "__";
        break;  // no word is empty, so two in a row mean nothing else
      default:
        result += c;
    }
  }
  // File systems take 255 bytes, and temporary files and journals put theirs around the name.
  if (result.size() > kSlugBytes) {
    const std::string rest = sha256_of(result).substr(0, 16);
    result.resize(kSlugBytes - rest.size() - 1);
    result += '-' + rest;
  }
  return result;
}

}  // namespace kvq
