#pragma once
// Finding added (special) tokens in text, as Hugging Face's AddedVocabulary does: leftmost, then longest.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvq {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;  ///< only where no word character touches it
  bool left_strip = false;   ///< takes the white space before it along
  bool right_strip = false;  ///< takes the white space behind it along
  bool normalized = false;   ///< looked for in the normalized text, in its normalized form
};

/// A part of a text: an added token (id ≥ 0), or text to be tokenized (id −1).
struct TextPart {
  std::size_t begin = 0, end = 0;
  std::int32_t id = -1;
};

class AddedTokenFinder {
 public:
  /// `content` of each token is what is searched for (already normalized where that applies). Empty ones are ignored.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// The parts of valid UTF-8 in order, without gaps; no text part is empty.
  std::vector<TextPart> split(std::string_view text, bool with_special) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;  ///< (byte, node), few each
    int token = -1;                                       ///< index of the token that ends here
  };
  struct Match {
    const AddedToken* token = nullptr;
    std::size_t length = 0;
  };
  int child(int node, unsigned char byte) const;
  Match longest_at(std::string_view text, std::size_t position) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
};

}  // namespace kvq
