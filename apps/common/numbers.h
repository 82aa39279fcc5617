#pragma once
// Checks of numbers on the command line and in --config. CLI11's own say "not in range" to anything that is no number,
// and let NaN through.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/cli_forward.h"

namespace kvq::apps {

/// A whole number from `low` to `high`: no point, no exponent, no sign of a number that wraps.
CLI::Validator whole_number(std::int64_t low, std::uint64_t high);

/// A finite number of at least `low` and at most (or, if `below`, less than) `high`. `what` names it in the message.
CLI::Validator real_number(double low, double high, const std::string& what = "a number", bool below = false);

/// Bytes with or without a unit, "80GB", "1.5 GB" (10^9), "24GiB" (2^30); turns it into the number of bytes.
CLI::Validator byte_size();

/// Throws Usage, naming `flag`, where a value is given twice: it would be counted twice.
void refuse_repeats(const std::string& flag, std::vector<std::int64_t> values);
/// The same of files, under whatever names.
void refuse_repeats(const std::string& flag, const std::vector<std::filesystem::path>& files);

}  // namespace kvq::apps
