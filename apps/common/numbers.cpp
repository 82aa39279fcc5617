#include "common/numbers.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

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

/// 1 for "" and "B", 10^9 for "GB" and "G", 2^30 for "GiB", in either case; 0 for what is no unit.
double unit_bytes(std::string unit) {
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (unit.empty() || unit == "b") return 1;
  const std::size_t power = std::string_view("kmgtp").find(unit[0]) + 1;
  if (power == 0) return 0;
  const std::string rest = unit.substr(1);
  if (rest.empty() || rest == "b") return std::pow(1000.0, power);
  return rest == "ib" ? std::pow(1024.0, power) : 0;
}

}  // namespace

CLI::Validator byte_size() {
  return CLI::Validator(
      [](std::string& text) {
        const std::size_t digits = text.find_first_not_of("0123456789."),
                          unit = std::min(text.find_first_not_of(' ', digits), text.size());
        double number = 0;
        std::uint64_t bytes = 0;
        const std::string digits_text = text.substr(0, digits);
        const double factor = unit_bytes(text.substr(unit));
        const bool is_number = !digits_text.empty() && digits_text.front() != '.' && digits_text.back() != '.' &&
                               parse(digits_text, number);
        if (!is_number || factor == 0)
          return fmt::format(
              "'{}' is not a size; a number of bytes with or without a unit is needed, such as 80GB, "
              "1.5GB or 24GiB",
              text);
        if (number * factor >= 9e18) return fmt::format("'{}' is more than 9 million TB", text);
        if (factor > 1 || !parse(digits_text, bytes)) bytes = static_cast<std::uint64_t>(std::llround(number * factor));
        text = fmt::format("{}", bytes);
        return std::string();
      },
      "SIZE");
}

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

void refuse_repeats(const std::string& flag, const std::vector<std::filesystem::path>& files) {
  for (std::size_t index = 0; index < files.size(); ++index) {
    for (std::size_t other = 0; other < index; ++other) {
      std::error_code error;  // what is not there is said by who reads it
      if (std::filesystem::equivalent(files[index], files[other], error) && !error)
        fail(ErrorKind::Usage, fmt::format("{} {} is given twice", flag, files[index].string()));
    }
  }
}

}  // namespace kvq::apps
