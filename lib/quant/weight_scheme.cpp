#include <kvq/quant/weight_scheme.h>

#include <charconv>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq {

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& reason) {
  fail(ErrorKind::Usage, fmt::format("weights '{}': {}; wB or wB-sF% with B from 1 to 8 and F up to {:g} is needed "
                                     "(w4-s0.45%)",
                                     shortened(text), reason, 100 * kMostSparse));
}

}  // namespace

WeightScheme parse_weight_scheme(const std::string& text) {
  WeightScheme scheme;
  if (text.size() < 2 || text[0] != 'w' || text[1] < '1' || text[1] > '8') refuse(text, "no number of bits");
  scheme.bits = text[1] - '0';
  if (text.size() == 2) return scheme;
  const std::string rest = text.substr(2);
  if (!rest.starts_with("-s") || !rest.ends_with('%') || rest.size() < 4)
    refuse(text, fmt::format("'{}' is no part of exact weights", shortened(rest)));
  double percent = 0;
  const char *begin = rest.data() + 2, *end = rest.data() + rest.size() - 1;
  const auto [stop, error] = std::from_chars(begin, end, percent);
  if (error != std::errc() || stop != end)
    refuse(text, fmt::format("'{}' is no number", shortened(std::string(begin, end))));
  if (!(percent > 0) || percent > 100 * kMostSparse) refuse(text, fmt::format("{} % is out of range", percent));
  scheme.sparse = percent / 100;
  return scheme;
}

std::string short_form(const WeightScheme& scheme) {
  if (scheme.sparse == 0) return fmt::format("w{}", scheme.bits);
  return fmt::format("w{}-s{:.10g}%", scheme.bits, 100 * scheme.sparse);
}

std::string slug(const WeightScheme& scheme) {
  std::string text = short_form(scheme);
  if (text.ends_with('%')) text.replace(text.size() - 1, 1, "pct");
  return text;
}

}  // namespace kvq
