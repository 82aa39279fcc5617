#pragma once
// Counts in sentences: "1 window", "3 windows".

#include <string>
#include <string_view>

namespace kvq {

/// `count` and the noun, with an s unless there is exactly one. For nouns that form their plural that way.
template <class Integer>
std::string plural(Integer count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

}  // namespace kvq
