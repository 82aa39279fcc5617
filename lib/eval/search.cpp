#include <kvq/eval/search.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>

namespace kvq {

namespace {

constexpr int kFarthestRungs = 2;  ///< between keys and values: beyond that one side does nearly all of the damage

/// Smaller is better.
std::pair<double, double> rank_of(const SearchGoal& goal, const TriedRecipe& tried) {
  return goal.target_kl ? std::pair(tried.bits, tried.kl) : std::pair(tried.kl, tried.bits);
}

/// Rungs by ascending nominal bits.
std::vector<std::size_t> ascending(const std::vector<Recipe>& ladder) {
  std::vector<std::size_t> order(ladder.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return nominal_bits(ladder[a]) < nominal_bits(ladder[b]); });
  return order;
}

}  // namespace

std::string SearchGoal::text() const {
  return target_kl ? fmt::format("a mean KL of at most {:g} nats", *target_kl)
                   : fmt::format("at most {:g} counted bits per value", *budget_bits);
}

bool meets(const SearchGoal& goal, const TriedRecipe& tried) {
  return goal.target_kl ? tried.kl <= *goal.target_kl : tried.bits <= *goal.budget_bits;
}

std::optional<std::size_t> best_recipe(const SearchGoal& goal, const std::vector<TriedRecipe>& tried) {
  std::optional<std::size_t> best;
  for (std::size_t index = 0; index < tried.size(); ++index) {
    if (meets(goal, tried[index]) && (!best || rank_of(goal, tried[index]) < rank_of(goal, tried[*best]))) best = index;
  }
  return best;
}

std::vector<Recipe> usual_ladder() {
  std::vector<Recipe> ladder;
  for (const char* name : {"kvq1.5", "kvq2", "kvq3", "kvq4", "nuq5-1%", "nuq6-1%", "nuq8-1%"})
    ladder.push_back(parse_recipe(name));
  return ladder;
}

void check_ladder(const std::vector<Recipe>& ladder) {
  KVQ_ASSERT(!ladder.empty());
  for (std::size_t index = 0; index < ladder.size(); ++index) {
    const Recipe& recipe = ladder[index];
    const auto refuse = [&](const std::string& reason) {
      fail(ErrorKind::Usage, fmt::format("--recipe {}: {}", short_form(recipe), reason));
    };
    if (!recipe.quantized) refuse("quantizes nothing; the search is for bits");
    for (const Side side : kSides) {
      if (recipe.side(side).vector.method == VectorMethod::Product)
        refuse("pq has bits by head vectors, which the order of a ladder does not know");
    }
    if (recipe.evicts()) refuse("drops tokens; the search is for bits");
    if (recipe.tiered()) refuse("has tiers of bits; the search is for bits that are the same for all tokens");
    if (recipe.is_oracle()) refuse("range=window is no cache: it knows the judged window");
    if (std::find(ladder.begin(), ladder.begin() + static_cast<std::ptrdiff_t>(index), recipe) !=
        ladder.begin() + static_cast<std::ptrdiff_t>(index))
      refuse("is given twice");
    if (recipe.sinks != ladder.front().sinks) {
      refuse(
          fmt::format("sink={} beside sink={} of {}: keys of one are tried with values of another, so both need the "
                      "same",
                      recipe.sinks, ladder.front().sinks, short_form(ladder.front())));
    }
  }
}

std::vector<Recipe> pairs_at_border(const SearchGoal& goal, const std::vector<Recipe>& ladder,
                                    const std::vector<TriedRecipe>& tried) {
  KVQ_ASSERT(tried.size() == ladder.size());
  const std::vector<std::size_t> order = ascending(ladder);
  // The border: with a target the cheapest rung that meets it and the one below; with a budget the dearest and the one
  // above. Either way rungs `upper - 1` and `upper`.
  std::optional<std::size_t> upper;
  for (std::size_t rung = 0; rung < order.size() && !upper; ++rung) {
    if (meets(goal, tried[order[rung]]) == goal.target_kl.has_value()) upper = rung;
  }
  if (!upper || *upper == 0) return {};
  const double low = nominal_bits(ladder[order[*upper - 1]]), high = nominal_bits(ladder[order[*upper]]);
  std::vector<Recipe> pairs;
  for (std::size_t key = 0; key < order.size(); ++key) {
    for (std::size_t value = 0; value < order.size(); ++value) {
      const auto apart = std::abs(static_cast<int>(key) - static_cast<int>(value));
      if (apart == 0 || apart > kFarthestRungs) continue;
      Recipe pair = ladder[order[key]];
      pair.value = ladder[order[value]].value;
      const double bits = nominal_bits(pair);
      if (bits < low - 1e-9 || bits > high - 1e-9) continue;
      try {
        validate(pair);
      } catch (const Error&) {
        continue;  // sides that cannot stand beside each other
      }
      if (std::find(ladder.begin(), ladder.end(), pair) == ladder.end()) pairs.push_back(std::move(pair));
    }
  }
  return pairs;
}

}  // namespace kvq
