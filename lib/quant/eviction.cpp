#include <kvq/quant/eviction.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/eviction_words.h>

namespace kvq {

namespace {

constexpr int kMostTokens = 1 << 20, kMostFirst = 1024, kMostKernel = 255;
constexpr double kHair = 1e-9;  ///< 0.07 · 100 = 7.000000000000001 means 7

[[noreturn]] void impossible(const std::string& message) {
  fail(ErrorKind::Usage, fmt::format("recipe, eviction: {}", message));
}

/// Fewest tokens that a rule can work with.
std::int64_t least_budget(const EvictionRecipe& eviction) {
  if (eviction.rule == EvictionRule::FirstRecent) return eviction.first + 1;
  return std::max(eviction.observe, 1);
}

void refuse_foreign(const EvictionRecipe& eviction) {
  const EvictionRecipe usual = usual_eviction(eviction.rule);
  const bool first_recent = eviction.rule == EvictionRule::FirstRecent;
  const bool prompt = chooses_at_prompt_end(eviction.rule);
  const char* word = !first_recent && eviction.first != usual.first                       ? "first"
                     : !first_recent && eviction.cache_positions != usual.cache_positions ? "positions"
                     : eviction.rule != EvictionRule::H2o && eviction.heavy != 0.0        ? "heavy"
                     : !prompt && eviction.observe != 0                                   ? "observe"
                     : !prompt && eviction.pooling != usual.pooling                       ? "pool"
                     : !prompt && eviction.kernel != 0                                    ? "kernel"
                     : eviction.rule != EvictionRule::PyramidKv && eviction.beta != 0.0   ? "beta"
                                                                                          : nullptr;
  if (word) impossible(fmt::format("{} has no {}", word_of(kEvictionWords, eviction.rule), word));
}

}  // namespace

EvictionRecipe usual_eviction(EvictionRule rule) {
  EvictionRecipe eviction;
  eviction.rule = rule;
  if (rule == EvictionRule::FirstRecent) eviction.first = 4, eviction.cache_positions = true;
  if (rule == EvictionRule::H2o) eviction.heavy = 0.5;
  if (chooses_at_prompt_end(rule)) eviction.observe = 32, eviction.kernel = 7;
  if (rule == EvictionRule::PyramidKv) eviction.observe = 8, eviction.beta = 20.0;
  return eviction;
}

bool chooses_at_prompt_end(EvictionRule rule) {
  return rule == EvictionRule::SnapKv || rule == EvictionRule::PyramidKv;
}

bool keeps_alike(EvictionRule rule) { return rule == EvictionRule::None || rule == EvictionRule::FirstRecent; }

void validate_eviction(const EvictionRecipe& eviction) {
  if (eviction.rule == EvictionRule::None) {
    if (!(eviction == EvictionRecipe{})) impossible("its words need evict=");
    return;
  }
  refuse_foreign(eviction);
  if (eviction.tokens != 0 && eviction.share != 0.0) impossible("the budget is either a number or a share of tokens");
  if (eviction.tokens == 0 && !(eviction.share > 0.0 && eviction.share <= 1.0)) {
    impossible(fmt::format("a budget is needed: a number of tokens from 1, or a share above 0 and up to 100 % ({:g} %)",
                           100 * eviction.share));
  }
  if (eviction.tokens < 0 || eviction.tokens > kMostTokens)
    impossible(fmt::format("a budget of {} tokens; 1 to {} are possible", eviction.tokens, kMostTokens));
  if (eviction.first < 0 || eviction.first > kMostFirst)
    impossible(fmt::format("first {}; 0 to {} are possible", eviction.first, kMostFirst));
  if (!(eviction.heavy >= 0.0 && eviction.heavy < 1.0))
    impossible(fmt::format("heavy {:g} %; 0 % and up to below 100 % are possible", 100 * eviction.heavy));
  if (chooses_at_prompt_end(eviction.rule)) {
    if (eviction.observe < 1 || eviction.observe > kMostTokens)
      impossible(fmt::format("observe {}; 1 to {} are possible", eviction.observe, kMostTokens));
    if (eviction.kernel < 1 || eviction.kernel > kMostKernel || eviction.kernel % 2 == 0)
      impossible(fmt::format("kernel {}; odd numbers from 1 to {} are possible", eviction.kernel, kMostKernel));
  }
  if (eviction.rule == EvictionRule::PyramidKv && !(eviction.beta >= 1.0 && eviction.beta <= 1e6))
    impossible(fmt::format("beta {:g}; 1 (all layers alike) to 1000000 are possible", eviction.beta));
  if (eviction.tokens != 0 && eviction.tokens < least_budget(eviction)) {
    impossible(fmt::format("a budget of {} tokens; {} needs {} at least ({})", eviction.tokens,
                           word_of(kEvictionWords, eviction.rule), least_budget(eviction),
                           eviction.rule == EvictionRule::FirstRecent ? "first + 1" : "observe"));
  }
}

std::int64_t eviction_budget(const EvictionRecipe& eviction, std::int64_t length) {
  if (eviction.rule == EvictionRule::None) return length;
  std::int64_t budget = eviction.tokens;
  if (budget == 0) {
    budget = static_cast<std::int64_t>(std::ceil(eviction.share * static_cast<double>(length) - kHair));
    budget = std::max(budget, least_budget(eviction));
  }
  return std::min(budget, length);
}

std::int64_t heavy_budget(const EvictionRecipe& eviction, std::int64_t budget) {
  return static_cast<std::int64_t>(std::floor(eviction.heavy * static_cast<double>(budget) + kHair));
}

std::vector<std::int64_t> prompt_budgets(const EvictionRecipe& eviction, int layers, std::int64_t prompt) {
  const std::int64_t mean = eviction_budget(eviction, prompt);
  std::vector<std::int64_t> budgets(static_cast<std::size_t>(layers), mean);
  if (eviction.rule != EvictionRule::PyramidKv || layers < 2) return budgets;
  const std::int64_t observed = std::min<std::int64_t>(eviction.observe, prompt), room = prompt - observed;
  const auto b = static_cast<double>(mean - observed);
  double last = b / eviction.beta, first = 2 * b - last;
  if (first > static_cast<double>(room)) first = static_cast<double>(room), last = 2 * b - first;
  std::int64_t missing = layers * (mean - observed);
  for (int layer = 0; layer < layers; ++layer) {
    const double exact = first - (first - last) * layer / (layers - 1);
    budgets[static_cast<std::size_t>(layer)] = static_cast<std::int64_t>(std::floor(exact + kHair));
    missing -= budgets[static_cast<std::size_t>(layer)];
  }
  for (std::int64_t& budget : budgets) {
    if (missing > 0 && budget < room) ++budget, --missing;
    budget += observed;
  }
  return budgets;
}

std::vector<float> pooled(std::span<const float> scores, Pooling pooling, int kernel) {
  const auto count = static_cast<std::int64_t>(scores.size());
  const int reach = kernel / 2;
  std::vector<float> result(scores.size());
  for (std::int64_t index = 0; index < count; ++index) {
    const auto begin = scores.begin() + std::max<std::int64_t>(index - reach, 0);
    const auto end = scores.begin() + std::min(index + reach + 1, count);
    result[static_cast<std::size_t>(index)] = pooling == Pooling::Max
                                                  ? *std::max_element(begin, end)
                                                  : static_cast<float>(std::accumulate(begin, end, 0.0) / kernel);
  }
  return result;
}

std::vector<std::int64_t> largest(std::span<const float> scores, std::int64_t count) {
  std::vector<std::int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  KVQ_ASSERT(count >= 0 && count <= static_cast<std::int64_t>(order.size()));
  const auto before = [&](std::int64_t a, std::int64_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::nth_element(order.begin(), order.begin() + count, order.end(), before);
  order.resize(static_cast<std::size_t>(count));
  std::sort(order.begin(), order.end());
  return order;
}

std::int64_t lightest(std::span<const float> weights, std::int64_t count) {
  // The least value first, in a loop without branches; then the first that has it.
  float least = std::numeric_limits<float>::infinity();
  for (std::int64_t index = 0; index < count; ++index)
    least = weights[static_cast<std::size_t>(index)] < least ? weights[static_cast<std::size_t>(index)] : least;
  return std::find(weights.begin(), weights.begin() + count, least) - weights.begin();
}

}  // namespace kvq
