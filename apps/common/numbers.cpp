#include "common/numbers.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <kvq/core/error.h>

namespace kvq::apps {

namespace {

template <typename Number>
bool parse(const std::string& text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

}  // namespace

CLI::Validator whole_number(std::int64_t low, std::uint64_t high) {
  return CLI::Validator(
      [=](const std::string& text) {
        std::int64_t small = 0;
        std::uint64_t large = 0;
        if (parse(text, small) && small < 0) {
          if (small >= low) return std::string();
        } else if (parse(text, large) && large <= high && (low <= 0 || large >= static_cast<std::uint64_t>(low))) {
          return std::string();
        }
        return fmt::format("'{}' is not a whole number from {} to {}", text, low, high);
      },
      "N");
}

CLI::Validator real_number(double low, double high, const std::string& what, bool below) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        // Comparisons with NaN are false, so it is refused.
        if (parse(text, value) && value >= low && (below ? value < high : value <= high)) return std::string();
        return fmt::format("'{}' is not {} of at least {} and {} {}", text, what, low, below ? "below" : "at most",
                           high);
      },
      "X");
}

void refuse_repeats(const std::string& flag, std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  const auto twice = std::adjacent_find(values.begin(), values.end());
  if (twice != values.end()) fail(ErrorKind::Usage, fmt::format("{}: {} is given twice", flag, *twice));
}

}  // namespace kvq::apps
