#include <kvq/quant/turbo_recipe.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/quant/method_words.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

std::optional<std::string> turbo_problem(const SideRecipe& side) {
  const TurboOptions& options = side.turbo;
  if (side.codebook != CodebookKind::Turbo) {
    std::vector<std::string> words;
    append_turbo_words(words, options);
    if (words.empty()) return std::nullopt;
    return fmt::format("{} is for turbo (turbo3); this is {}", words.front(), codebook_name(side));
  }
  if (options.qjl && options.norm != NormRule::Exact) {
    return fmt::format("norm={} corrects the length that codes alone decode to; qjl needs norm=exact",
                       word_of(kNormWords, options.norm));
  }
  if (options.outlier_channels < 0) return fmt::format("{} outlier channels", options.outlier_channels);
  if (options.outlier_channels == 0 && options.outlier_bits != 0)
    return "outlier-bits= needs outlier-channels=, the number of channels that have them";
  if (options.outlier_channels > 0 && (options.outlier_bits < 1 || options.outlier_bits > 8)) {
    return fmt::format("outlier-channels={} needs outlier-bits= from 1 to 8, not {}", options.outlier_channels,
                       options.outlier_bits);
  }
  if (options.seed < 0) return fmt::format("seed {}; it must not be negative", options.seed);
  return std::nullopt;
}

void check_turbo_shape(const Recipe& recipe, Side which, int head_dim) {
  try {
    check_turbo_dim(recipe.side(which).turbo, head_dim);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("recipe {}, {}, heads of {} channels: {}", short_form(recipe), side_name(which),
                                   head_dim, error.what()));
  }
}

WordResult take_turbo_word(TurboOptions& options, const std::string& name, const std::string& argument,
                           std::string& problem) {
  const auto refuse = [&](const std::string& why) {
    problem = fmt::format("'{}{}{}'; {}", name, argument.empty() ? "" : "=", shortened(argument), why);
    return WordResult::Refused;
  };
  const auto choose = [&](const auto& words, auto& target) {
    const auto found = find_word(words, argument);
    if (!found) return refuse(fmt::format("{} can be: {}", name, list_words(words)));
    target = *found;
    return WordResult::Taken;
  };
  const auto count = [&](int& target) {
    const auto number = parse_count(argument);
    if (!number) return refuse(fmt::format("{} takes a number", name));
    target = *number;
    return WordResult::Taken;
  };
  if (name == "rotation") return choose(kTurboRotationWords, options.hadamard);
  if (name == "marginal") return choose(kMarginalWords, options.marginal);
  if (name == "norm") return choose(kNormWords, options.norm);
  if (name == "outlier-channels") return count(options.outlier_channels);
  if (name == "outlier-bits") return count(options.outlier_bits);
  if (name == "seed") return count(options.seed);
  if (name != "qjl") return WordResult::Unknown;
  if (!argument.empty()) return refuse("qjl stands alone");
  options.qjl = true;
  return WordResult::Taken;
}

void append_turbo_words(std::vector<std::string>& words, const TurboOptions& options) {
  const TurboOptions usual;
  if (options.hadamard != usual.hadamard) words.push_back("rotation=" + word_of(kTurboRotationWords, options.hadamard));
  if (options.marginal != usual.marginal) words.push_back("marginal=" + word_of(kMarginalWords, options.marginal));
  if (options.norm != usual.norm) words.push_back("norm=" + word_of(kNormWords, options.norm));
  if (options.qjl) words.emplace_back("qjl");
  if (options.outlier_channels != 0) words.push_back(fmt::format("outlier-channels={}", options.outlier_channels));
  if (options.outlier_bits != 0) words.push_back(fmt::format("outlier-bits={}", options.outlier_bits));
  if (options.seed != usual.seed) words.push_back(fmt::format("seed={}", options.seed));
}

}  // namespace kvq
