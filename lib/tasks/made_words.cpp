#include <kvq/tasks/made_words.h>

#include <array>
#include <set>
#include <string_view>
#include <utility>

namespace kvq {

namespace {

constexpr std::array<std::string_view, 16> kOnsets = {"b", "d", "f", "g", "k", "l", "m",  "n",
                                                      "p", "r", "s", "t", "v", "z", "br", "st"};
constexpr std::array<std::string_view, 5> kVowels = {"a", "e", "i", "o", "u"};
constexpr std::array<std::string_view, 6> kCodas = {"", "n", "r", "l", "s", "m"};

const std::vector<std::string>& sentences() {
  static const std::vector<std::string> all = {
      "The kettle on the stove takes a while to boil.",
      "A narrow path leads from the barn down to the river.",
      "Most of the shops along this street close early on Mondays.",
      "The wind turned during the night and brought cooler air.",
      "Two chairs stand by the window, and nobody sits in them.",
      "The last bus of the evening is usually half empty.",
      "Someone has left a blue umbrella in the hall.",
      "The bread was still warm when it was put on the table.",
      "It rained for an hour, and then the sky cleared again.",
      "The old clock in the station runs a little slow.",
      "There is a bench under the oak tree at the corner of the field.",
      "The gardener waters the roses before the sun gets high.",
      "A stack of newspapers lay beside the door.",
      "The ferry crosses the bay several times a day.",
      "On clear mornings one can see the hills from the roof.",
      "The library keeps its maps in long flat drawers.",
      "A grey cat crossed the yard without looking up.",
      "The road bends twice before it reaches the bridge.",
      "Dinner was simple: soup, cheese and a few apples.",
      "The children drew with chalk on the pavement.",
      "The radio played quietly in the next room.",
      "Leaves had gathered in the gutter over the autumn.",
      "The painter mixed a colour between green and grey.",
      "Nothing much happened in the village that week.",
      "The train stopped for a minute and went on.",
      "A jar of honey stood on the shelf by the tea.",
      "The stairs creak, except for the third one.",
      "In the afternoon the market square is quiet.",
      "The letter was short and came without a stamp.",
      "They repaired the fence before the winter began.",
      "The lamp above the desk needs a new bulb.",
      "Boats lay upside down on the shingle to dry.",
  };
  return all;
}

template <std::size_t kCount>
std::string_view pick(const std::array<std::string_view, kCount>& parts, Rng& rng) {
  return parts[rng.below(kCount)];
}

}  // namespace

std::vector<std::string> made_words(std::size_t count, Rng& rng) {
  std::vector<std::string> words;
  std::set<std::string> seen;
  while (words.size() < count) {
    std::string word;
    for (int syllable = 0; syllable < 3; ++syllable) {
      word += pick(kOnsets, rng);
      word += pick(kVowels, rng);
    }
    word += pick(kCodas, rng);
    if (seen.insert(word).second) words.push_back(std::move(word));
  }
  return words;
}

std::vector<std::string> made_numbers(std::size_t count, Rng& rng) {
  std::vector<std::string> numbers;
  std::set<std::string> seen;
  while (numbers.size() < count) {
    std::string number = std::to_string(1'000'000 + rng.below(9'000'000));
    if (seen.insert(number).second) numbers.push_back(std::move(number));
  }
  return numbers;
}

const std::string& filler_sentence(Rng& rng) { return sentences()[rng.below(sentences().size())]; }

}  // namespace kvq
