#include <kvq/quant/tiers.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr int kMostNewest = 1 << 20;
constexpr double kLeastDecay = 1e-6;   ///< less forgets everything but the last query, as this does
constexpr double kHairOfShare = 1e-9;  ///< 0.07 · 100 = 7.000000000000001 means 7

[[noreturn]] void wrong_tiers(const std::string& message) {
  fail(ErrorKind::Usage, fmt::format("recipe, tiers: {}", message));
}

std::int64_t share_of_tokens(double share, std::int64_t tokens) {
  return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(tokens) - kHairOfShare));
}

void validate_shares(const TierRecipe& tiers) {
  const auto inside = [](double share) { return share > 0.0 && share < 1.0; };
  if (!inside(tiers.high_share))
    wrong_tiers(fmt::format("hi-share {:g} %; above 0 % and below 100 % is possible", 100 * tiers.high_share));
  if (tiers.mid == 0 ? tiers.mid_share != 0.0 : !inside(tiers.mid_share)) {
    wrong_tiers(tiers.mid == 0
                    ? "mid-share needs a middle tier (mid=)"
                    : fmt::format("mid-share {:g} %; above 0 % and below 100 % is possible", 100 * tiers.mid_share));
  }
  const double above = tiers.high_share + tiers.mid_share;
  if (above >= 1.0)
    wrong_tiers(fmt::format("hi-share and mid-share come to {:g} %: nothing is left for the last tier", 100 * above));
  if (!(tiers.keep > above && tiers.keep <= 1.0)) {
    wrong_tiers(
        fmt::format("keep {:g} %; more than the {:g} % of the tiers above the last, and up to 100 %, is possible",
                    100 * tiers.keep, 100 * above));
  }
}

}  // namespace

TierRecipe usual_tiers(bool with_mid, TierWeights by) {
  TierRecipe tiers;
  tiers.high_share = 0.25;
  if (with_mid) tiers.mid_share = 0.25;
  if (by == TierWeights::Past) tiers.newest = 32;
  tiers.by = by;
  return tiers;
}

void validate_tiers(const TierRecipe& tiers, int high) {
  if (!tiers.any()) {
    if (!(tiers == TierRecipe{})) wrong_tiers("their words need lo=, the bits of the last tier");
    return;
  }
  if (tiers.low < 1 || tiers.low > 8 || tiers.mid < 0 || tiers.mid > 8)
    wrong_tiers(fmt::format("mid {}, lo {}; 1 to 8 bits are possible", tiers.mid, tiers.low));
  if (tiers.low >= high)
    wrong_tiers(fmt::format("lo={} must be less than the {} bits of the first tier", tiers.low, high));
  if (tiers.mid != 0 && (tiers.mid >= high || tiers.mid <= tiers.low)) {
    wrong_tiers(
        fmt::format("mid={} must lie between lo={} and the {} bits of the first tier", tiers.mid, tiers.low, high));
  }
  validate_shares(tiers);
  if (!(tiers.decay >= kLeastDecay && tiers.decay <= 1.0))
    wrong_tiers(fmt::format("decay {:g}; {:g} to 1 (none) is possible", tiers.decay, kLeastDecay));
  if (tiers.hysteresis && !(*tiers.hysteresis >= 0.0 && *tiers.hysteresis <= 100.0))
    wrong_tiers(fmt::format("hysteresis {:g} %; 0 % to 10000 % are possible", 100 * *tiers.hysteresis));
  if (tiers.by == TierWeights::Past) {
    if (tiers.newest < 1 || tiers.newest > kMostNewest)
      wrong_tiers(fmt::format("newest {}; 1 to {} are possible: a token that has just come has no weight yet",
                              tiers.newest, kMostNewest));
    return;
  }
  const char* word = tiers.newest != 0    ? "newest"
                     : tiers.decay != 1.0 ? "decay"
                     : tiers.hysteresis   ? "hysteresis"
                     : tiers.keep != 1.0  ? "keep"
                                          : nullptr;
  if (word) wrong_tiers(fmt::format("by=window knows the weights of the whole window; it has no {}", word));
}

std::vector<int> lower_tier_bits(const TierRecipe& tiers) {
  std::vector<int> bits;
  if (tiers.mid != 0) bits.push_back(tiers.mid);
  if (tiers.low != 0) bits.push_back(tiers.low);
  return bits;
}

std::vector<std::int64_t> tier_limits(const TierRecipe& tiers, std::int64_t tokens) {
  const std::int64_t high =
      std::min(tokens, std::max<std::int64_t>(share_of_tokens(tiers.high_share, tokens), tiers.newest));
  std::vector<std::int64_t> limits = {high};
  if (tiers.mid != 0) limits.push_back(std::max(high, share_of_tokens(tiers.high_share + tiers.mid_share, tokens)));
  limits.push_back(std::max(limits.back(), share_of_tokens(tiers.keep, tokens)));
  return limits;
}

bool tier_moves(const TierRecipe& tiers, int tier) {
  if (tiers.by == TierWeights::Window) return false;
  const auto last = static_cast<int>(lower_tier_bits(tiers).size());
  return tier < last || tiers.keep < 1.0 || tiers.hysteresis;
}

double tier_nominal_bits(const TierRecipe& tiers, double high) {
  return tiers.high_share * high + tiers.mid_share * tiers.mid +
         (tiers.keep - tiers.high_share - tiers.mid_share) * tiers.low;
}

}  // namespace kvq
