#include <kvq/quant/tier_words.h>

#include <charconv>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/method_words.h>

namespace kvq {

namespace {

std::optional<double> tier_number(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (text.empty() || result.ec != std::errc() || result.ptr != end || !(value >= 0)) return std::nullopt;
  return value;
}

}  // namespace

bool TierWords::take(const std::string& name, const std::string& argument, std::string& problem) {
  const auto choose = [&](const auto& words, auto& target) {
    target = find_word(words, argument);
    if (!target) problem = fmt::format("{} can be: {}", name, list_words(words));
  };
  const auto bits = [&](std::optional<int>& target) {
    target = parse_count(argument);
    if (!target || *target < 1 || *target > 8) problem = fmt::format("{} takes bits, 1 to 8", name);
  };
  const auto share = [&](std::optional<double>& target, std::string_view example) {
    if (argument.ends_with('%')) target = parse_percent(std::string_view(argument).substr(0, argument.size() - 1));
    if (!target) problem = fmt::format("{} takes a percentage such as {}", name, example);
  };
  if (name == "hi") {
    bits(high);
  } else if (name == "mid") {
    bits(mid);
  } else if (name == "lo") {
    bits(low);
  } else if (name == "hi-share") {
    share(high_share, "25%");
  } else if (name == "mid-share") {
    share(mid_share, "25%");
  } else if (name == "keep") {
    share(keep, "80%");
  } else if (name == "hysteresis") {
    share(hysteresis, "50%");
  } else if (name == "newest") {
    newest = parse_count(argument);
    if (!newest) problem = fmt::format("newest takes a number of tokens, at most {}", 1 << 20);
  } else if (name == "decay") {
    decay = tier_number(argument);
    if (!decay) problem = "decay takes a number above 0 and up to 1, such as 0.99";
  } else if (name == "by") {
    choose(kTierWeightWords, by);
  } else if (name == "per") {
    choose(kTierListWords, per_head);
  } else {
    return false;
  }
  any = true;
  return true;
}

TierRecipe TierWords::recipe() const {
  if (!any && !adaptive) return {};
  if (high && !adaptive)
    fail(ErrorKind::Usage, "hi= is for adaptive; the first tier of other recipes has their own bits (nuq4-1%:lo=2)");
  if (!low && !adaptive) fail(ErrorKind::Usage, "words for tiers need lo=, the bits of the last tier");
  TierRecipe tiers = usual_tiers(mid.has_value(), by.value_or(TierWeights::Past));
  tiers.low = low.value_or(kUsualLowBits);
  tiers.mid = mid.value_or(0);
  tiers.high_share = high_share.value_or(tiers.high_share);
  tiers.mid_share = mid_share.value_or(tiers.mid_share);
  tiers.keep = keep.value_or(tiers.keep);
  tiers.newest = newest.value_or(tiers.newest);
  tiers.decay = decay.value_or(tiers.decay);
  tiers.hysteresis = hysteresis;
  tiers.per_head = per_head.value_or(tiers.per_head);
  return tiers;
}

std::vector<std::string> tier_words(const TierRecipe& tiers) {
  if (!tiers.any()) return {};
  const TierRecipe usual = usual_tiers(tiers.mid != 0, tiers.by);
  std::vector<std::string> words;
  const auto add_share = [&](const char* name, double share, double usual_share) {
    if (share != usual_share) words.push_back(fmt::format("{}={}%", name, format_percent(share)));
  };
  if (tiers.mid != 0) words.push_back(fmt::format("mid={}", tiers.mid));
  words.push_back(fmt::format("lo={}", tiers.low));
  add_share("hi-share", tiers.high_share, usual.high_share);
  add_share("mid-share", tiers.mid_share, usual.mid_share);
  add_share("keep", tiers.keep, usual.keep);
  if (tiers.newest != usual.newest) words.push_back(fmt::format("newest={}", tiers.newest));
  if (tiers.decay != usual.decay) words.push_back(fmt::format("decay={}", tiers.decay));
  if (tiers.hysteresis) words.push_back(fmt::format("hysteresis={}%", format_percent(*tiers.hysteresis)));
  if (tiers.by != TierWeights::Past) words.push_back("by=" + word_of(kTierWeightWords, tiers.by));
  if (tiers.per_head) words.push_back("per=" + word_of(kTierListWords, tiers.per_head));
  return words;
}

}  // namespace kvq
