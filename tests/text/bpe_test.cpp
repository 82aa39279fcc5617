#include <chrono>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/text/added_tokens.h>
#include <kvq/text/bpe.h>
#include <kvq/text/split_pattern.h>

using namespace kvq;

namespace {

/// The definition, step by step: look at all neighbours, merge the pair of best rank that stands leftmost, repeat.
std::vector<std::int32_t> merged_slowly(const std::vector<Merge>& merges, std::vector<std::int32_t> symbols) {
  while (true) {
    const Merge* best = nullptr;
    std::size_t best_at = 0;
    for (std::size_t at = 0; at + 1 < symbols.size(); ++at) {
      for (const Merge& merge : merges) {
        if (merge.left != symbols[at] || merge.right != symbols[at + 1]) continue;
        if (!best || merge.rank < best->rank) {
          best = &merge;
          best_at = at;
        }
      }
    }
    if (!best) return symbols;
    symbols[best_at] = best->result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

std::vector<std::string> pieces(const SplitStage& stage, const std::string& text) {
  SplitPattern::Scratch scratch;
  std::vector<std::string> found;
  SplitPattern(stage).split(text, scratch, [&](std::string_view piece) { found.emplace_back(piece); });
  return found;
}

std::string pattern_error(const std::string& pattern) {
  try {
    SplitPattern compiled({pattern});
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Format);
    CHECK_THAT(std::string(error.what()), ContainsSubstring(pattern));
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("Merging with a heap equals merging by definition") {
  Rng rng(3);
  for (int round = 0; round < 400; ++round) {
    std::vector<Merge> merges;
    std::int32_t symbols = 3;
    const bool ties = round % 2 == 0;  // as with equal scores: several pairs of one rank
    for (int count = 0; count < 12; ++count) {
      const auto left = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(symbols)));
      const auto right = static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(symbols)));
      bool known = false;
      for (const Merge& merge : merges) known = known || (merge.left == left && merge.right == right);
      if (!known) merges.push_back({left, right, symbols++, ties ? count / 3 : count});
    }
    const MergeTable table(merges);
    BpeMerger merger(table);
    for (int word = 0; word < 5; ++word) {
      std::vector<std::int32_t> text(rng.below(40));
      for (auto& symbol : text) symbol = static_cast<std::int32_t>(rng.below(3));
      auto merged = text;
      merger.merge(merged);
      CHECK(merged == merged_slowly(merges, text));
    }
  }
}

TEST_CASE("A megabyte of one character merges in far less than quadratic time") {
  std::vector<Merge> merges;  // a a -> aa, aa aa -> aaaa …
  for (std::int32_t level = 0; level < 5; ++level) merges.push_back({level, level, level + 1, level});
  const MergeTable table(merges);
  BpeMerger merger(table);
  std::vector<std::int32_t> word((1 << 20) + 3, 0);
  const auto start = std::chrono::steady_clock::now();
  merger.merge(word);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  CHECK(word.size() == (1 << 15) + 2);
  CHECK(word.front() == 5);
  CHECK(word[word.size() - 2] == 1);
  CHECK(word.back() == 0);
  CHECK(seconds < 60);  // under a second in a release build; quadratic time would be hours
}

TEST_CASE("Blanks are Unicode's White_Space, in patterns as for Hugging Face") {
  const std::string all = "\t\n\v\f\r \u0085\u00A0\u1680\u2000\u200A\u2028\u2029\u202F\u205F\u3000";
  CHECK(pieces({R"(\s+)"}, "a" + all + "b") == std::vector<std::string>{"a", all, "b"});
  for (const std::string other : {"\u180E", "\u200B", "\uFEFF", "\u2060"}) {
    CHECK(pieces({R"(\s)"}, "a" + other + "b").size() == 1);
    CHECK(pieces({R"([^\s])"}, other).size() == 1);
    CHECK(pieces({R"(\S)"}, "a" + other).size() == 2);
  }
}

TEST_CASE("A stage keeps everything, the matches, or what lies between") {
  CHECK(pieces({R"(\d)"}, "ab12c") == std::vector<std::string>{"ab", "1", "2", "c"});
  CHECK(pieces({R"(\d)", false, SplitStage::Keep::Matches}, "ab12c") == std::vector<std::string>{"1", "2"});
  CHECK(pieces({R"(\d)", false, SplitStage::Keep::Gaps}, "ab12c") == std::vector<std::string>{"ab", "c"});
  CHECK(pieces({".", true}, "a.b") == std::vector<std::string>{"a", ".", "b"});
  CHECK(pieces({"x"}, "").empty());
}

TEST_CASE("Patterns that PCRE2 and Oniguruma read differently are refused") {
  for (const std::string pattern :
       {R"(\w+)", R"(\bx)", R"(\h)", R"([\S])", "^a", "a$", "[a[b]]", "[a&&b]", R"(\X)", R"(\R)", "[]a]", "a\\"}) {
    CHECK_THAT(pattern_error(pattern), ContainsSubstring("is not supported"));
  }
  CHECK_THAT(pattern_error("(a"), ContainsSubstring("parenthes"));
  CHECK_THAT(pattern_error(R"(\p{Nonsense})"), ContainsSubstring("property"));
  CHECK(pattern_error(R"([^\r\n\p{L}]?\p{Lu}+(?i:'s|'d)?[\r\n/]*|\[\^\$\.)") == "accepted");
}

TEST_CASE("Added tokens are found leftmost, then longest, and cover the text without gaps") {
  std::vector<AddedToken> tokens(4);
  const char* contents[] = {"<a>", "<a><b>", "<b>", "b"};
  for (std::int32_t id = 0; id < 4; ++id) {
    tokens[static_cast<std::size_t>(id)].id = id;
    tokens[static_cast<std::size_t>(id)].content = contents[id];
    tokens[static_cast<std::size_t>(id)].special = id == 2;
  }
  const AddedTokenFinder finder(tokens);
  const auto ids = [&](const std::string& text, bool special) {
    std::vector<std::int32_t> found;
    std::size_t end = 0;
    for (const TextPart& part : finder.split(text, special)) {
      CHECK(part.begin == end);
      CHECK(part.end > part.begin);
      end = part.end;
      found.push_back(part.id);
    }
    CHECK(end == text.size());
    return found;
  };
  CHECK(ids("x<a><b>y<a><a>", true) == std::vector<std::int32_t>{-1, 1, -1, 0, 0});
  CHECK(ids("<b>b", true) == std::vector<std::int32_t>{2, 3});
  // A special token that is not wanted is plain text as a whole, as in Hugging Face: no shorter token inside it.
  CHECK(ids("<b>b", false) == std::vector<std::int32_t>{-1, 3});
  CHECK(ids("", true).empty());
}
