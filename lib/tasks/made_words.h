#pragma once
// Words and sentences that no text contains, so that nothing can be answered from memory.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <kvq/core/rng.h>

namespace kvq {

/// `count` different words of three syllables, such as "velomir".
std::vector<std::string> made_words(std::size_t count, Rng& rng);

/// `count` different numbers of seven digits.
std::vector<std::string> made_numbers(std::size_t count, Rng& rng);

/// One of a few dozen plain sentences that say nothing.
const std::string& filler_sentence(Rng& rng);

/// Fisher-Yates with our generator: std::shuffle differs between libraries.
template <class T>
void shuffle(std::vector<T>& items, Rng& rng) {
  for (std::size_t left = items.size(); left > 1; --left) std::swap(items[left - 1], items[rng.below(left)]);
}

}  // namespace kvq
