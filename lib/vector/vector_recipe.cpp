#include <kvq/vector/vector_recipe.h>

#include <charconv>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq {

namespace {

constexpr std::string_view kVectorHeads = "scalarB, deltaB with B from 1 to 8; pq";
constexpr std::string_view kScalarWords = "scale=, levels=, lowrank=R, fbits=B, entropy=, page=N";
constexpr std::string_view kDeltaWords = "scale=, levels=, anchor=N, threshold=T, abits=B";
constexpr std::string_view kProductWords = "m=M, bits=B, norm, lowrank=R, fbits=B, page=N";

struct VectorParser {
  explicit VectorParser(const std::string& text) : whole(text) {}

  const std::string& whole;  ///< for messages
  VectorRecipe recipe;
  std::set<std::string> seen;

  [[noreturn]] void refuse(const std::string& message) const {
    fail(ErrorKind::Usage, fmt::format("vector recipe '{}': {}", shortened(whole), message));
  }
  bool is(VectorMethod method) const { return recipe.method == method; }
  bool has(const char* word) const { return seen.count(word) > 0; }

  int number(const std::string& name, std::string_view text, int low, int high) const {
    int value = 0;
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || result.ec != std::errc() || result.ptr != text.data() + text.size() || value < low ||
        value > high)
      refuse(fmt::format("'{}={}'; {} is a whole number from {} to {}", name, shortened(text), name, low, high));
    return value;
  }

  void parse() {
    const auto colon = whole.find(':');
    head(std::string_view(whole).substr(0, colon));
    std::string_view rest = colon == std::string::npos ? std::string_view() : std::string_view(whole).substr(colon + 1);
    while (colon != std::string::npos) {
      const auto comma = rest.find(',');
      word(std::string(rest.substr(0, comma)));
      if (comma == std::string_view::npos) break;
      rest = rest.substr(comma + 1);
    }
    agree();
  }

  void head(std::string_view text) {
    if (text == "pq") {
      recipe.method = VectorMethod::Product;
      recipe.bits = 8;
      return;
    }
    const bool scalar = text.substr(0, 6) == "scalar", delta = text.substr(0, 5) == "delta";
    if (!scalar && !delta) refuse(fmt::format("unknown method '{}'; known: {}", shortened(text), kVectorHeads));
    const std::string_view bits = text.substr(scalar ? 6 : 5);
    if (bits.size() != 1 || bits[0] < '1' || bits[0] > '8')
      refuse(fmt::format("bits '{}'; known: {}", shortened(bits), kVectorHeads));
    recipe.method = scalar ? VectorMethod::Scalar : VectorMethod::Delta;
    recipe.bits = bits[0] - '0';
  }

  void word(const std::string& text) {
    const auto equals = text.find('=');
    const std::string name = text.substr(0, equals);
    const bool bare = equals == std::string::npos;
    const std::string argument = bare ? "" : text.substr(equals + 1);
    if (!seen.insert(name).second) refuse(fmt::format("'{}' stands there twice", shortened(name)));
    if (bare && name == "norm" && is(VectorMethod::Product)) {
      recipe.norm = true;
      return;
    }
    if (bare || !known(name, argument)) {
      refuse(fmt::format("unknown word '{}'; known here: {}", shortened(text), known_vector_words(recipe)));
    }
  }

  bool known(const std::string& name, const std::string& argument) {
    const bool product = is(VectorMethod::Product), delta = is(VectorMethod::Delta), scalar = is(VectorMethod::Scalar);
    if (name == "scale" && !product) {
      if (argument != "norm" && argument != "max")
        refuse(fmt::format("'scale={}'; scale can be: norm, max", shortened(argument)));
      recipe.scale = argument == "norm" ? RowScale::Norm : RowScale::Max;
    } else if (name == "levels" && !product) {
      if (argument != "fit" && argument != "even")
        refuse(fmt::format("'levels={}'; levels can be: fit, even", shortened(argument)));
      recipe.even_levels = argument == "even";
    } else if (name == "anchor" && delta) {
      recipe.anchor = number(name, argument, 1, 65536);
    } else if (name == "abits" && delta) {
      recipe.anchor_bits = number(name, argument, 1, 8);
    } else if (name == "threshold" && delta) {
      threshold(argument);
    } else if (name == "m" && product) {
      recipe.subspaces = number(name, argument, 1, 65536);
    } else if (name == "bits" && product) {
      recipe.bits = number(name, argument, 1, 8);
    } else if (name == "lowrank" && !delta) {
      recipe.low_rank = number(name, argument, 1, 256);
    } else if (name == "fbits" && !delta) {
      recipe.factor_bits = number(name, argument, 2, 8);
    } else if (name == "entropy" && scalar) {
      if (argument != "huffman" && argument != "rans")
        refuse(fmt::format("'entropy={}'; entropy can be: huffman, rans", shortened(argument)));
      recipe.entropy = argument == "rans" ? EntropyWord::Rans : EntropyWord::Huffman;
    } else if (name == "page" && !delta) {
      recipe.page = number(name, argument, 1, 65536);
    } else {
      return false;
    }
    return true;
  }

  void threshold(const std::string& argument) {
    double value = -1;
    const char* end = argument.data() + argument.size();
    const auto result = std::from_chars(argument.data(), end, value);
    if (result.ec != std::errc() || result.ptr != end || !(value >= 0 && value <= 1e6))
      refuse(fmt::format("'threshold={}'; threshold is a number from 0 to 1000000", shortened(argument)));
    recipe.threshold = static_cast<double>(static_cast<float>(value));
  }

  void agree() {
    if (recipe.low_rank > 0 && recipe.entropy != EntropyWord::None)
      refuse("lowrank= and entropy= do not go together: the factors of a page follow codes of a fixed size");
    if (has("fbits") && recipe.low_rank == 0) refuse("fbits= is for the factors of lowrank=, which is not there");
    if (has("page") && recipe.low_rank == 0 && recipe.entropy == EntropyWord::None)
      refuse(is(VectorMethod::Scalar) ? "page= is for lowrank= or entropy=, and neither is there"
                                      : "page= is for lowrank=, which is not there");
    if (recipe.anchor_bits == recipe.bits) recipe.anchor_bits = 0;
  }
};

}  // namespace

VectorRecipe parse_vector_recipe(const std::string& text) {
  VectorParser parser(text);
  parser.parse();
  return parser.recipe;
}

namespace {

/// `all`: also what is the default, where it says something.
std::vector<std::string> spell(const VectorRecipe& recipe, bool all) {
  const VectorRecipe usual;
  std::vector<std::string> words;
  const auto add = [&](bool differs, std::string word) {
    if (all || differs) words.push_back(std::move(word));
  };
  if (recipe.method == VectorMethod::Product) {
    add(recipe.subspaces != usual.subspaces, fmt::format("m={}", recipe.subspaces));
    add(recipe.bits != 8, fmt::format("bits={}", recipe.bits));
    if (recipe.norm) words.push_back("norm");
  } else {
    add(recipe.scale != usual.scale, recipe.scale == RowScale::Max ? "scale=max" : "scale=norm");
    add(recipe.even_levels, recipe.even_levels ? "levels=even" : "levels=fit");
  }
  if (recipe.method == VectorMethod::Delta) {
    add(recipe.anchor != usual.anchor, fmt::format("anchor={}", recipe.anchor));
    add(recipe.threshold != usual.threshold, fmt::format("threshold={}", static_cast<float>(recipe.threshold)));
    add(recipe.anchor_bits != 0, fmt::format("abits={}", recipe.anchor_bits > 0 ? recipe.anchor_bits : recipe.bits));
  }
  if (recipe.low_rank > 0) {
    words.push_back(fmt::format("lowrank={}", recipe.low_rank));
    add(recipe.factor_bits != usual.factor_bits, fmt::format("fbits={}", recipe.factor_bits));
  }
  if (recipe.entropy != EntropyWord::None)
    words.push_back(recipe.entropy == EntropyWord::Rans ? "entropy=rans" : "entropy=huffman");
  if (recipe.low_rank > 0 || recipe.entropy != EntropyWord::None)
    add(recipe.page != usual.page, fmt::format("page={}", recipe.page));
  return words;
}

std::string join(const std::string& head, const std::vector<std::string>& words) {
  return words.empty() ? head : fmt::format("{}:{}", head, fmt::join(words, ","));
}

}  // namespace

std::string vector_head(const VectorRecipe& recipe) {
  if (recipe.method == VectorMethod::Product) return "pq";
  return fmt::format("{}{}", recipe.method == VectorMethod::Scalar ? "scalar" : "delta", recipe.bits);
}

std::vector<std::string> vector_words(const VectorRecipe& recipe) { return spell(recipe, false); }

std::string short_form(const VectorRecipe& recipe) { return join(vector_head(recipe), spell(recipe, false)); }

std::string long_form(const VectorRecipe& recipe) { return join(vector_head(recipe), spell(recipe, true)); }

bool is_vector_head(std::string_view text) {
  if (text == "pq") return true;
  if (text.empty() || text.back() < '1' || text.back() > '8') return false;
  text.remove_suffix(1);
  return text == "scalar" || text == "delta";
}

std::string_view known_vector_words(const VectorRecipe& recipe) {
  return recipe.method == VectorMethod::Scalar  ? kScalarWords
         : recipe.method == VectorMethod::Delta ? kDeltaWords
                                                : kProductWords;
}

bool is_vector_word(const VectorRecipe& recipe, std::string_view name) {
  std::string_view words = known_vector_words(recipe);
  for (;;) {
    const std::string_view word = words.substr(0, words.find(", "));
    if (!name.empty() && word.substr(0, word.find('=')) == name) return true;
    if (word.size() == words.size()) return false;
    words.remove_prefix(word.size() + 2);
  }
}

void check_vector_dim(const VectorRecipe& recipe, int dim) {
  if (recipe.method == VectorMethod::Product && dim % recipe.subspaces != 0)
    fail(ErrorKind::Usage,
         fmt::format("pq: m={} subspaces for rows of {} channels; m must divide them", recipe.subspaces, dim));
}

}  // namespace kvq
