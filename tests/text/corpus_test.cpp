#include <algorithm>
#include <numeric>
#include <set>

#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/text/corpus.h>
#include <kvq/text/utf8.h>

using namespace kvq;
using namespace kvq::test;

namespace {

/// One token per byte, so that ids can be written down by hand.
class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<std::int32_t> encode(std::string_view text, bool) const override {
    std::vector<std::int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += static_cast<char>(id);
    return text;
  }
  int vocab_size() const override { return 256; }
};

TextFile read(const std::string& content, const std::string& name = "a.txt") {
  const TempDir folder;
  write_bytes(folder / name, content);
  return read_text({"a", folder / name});
}

std::string refusal(const std::string& content, const std::string& name = "a.txt") {
  try {
    read(content, name);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Input);
    CHECK_THAT(std::string(error.what()), ContainsSubstring(name));
    return error.what();
  }
  return "accepted";
}

TokenStream stream(std::int64_t length, std::int32_t first = 0) {
  TokenStream made;
  made.ids.resize(static_cast<std::size_t>(length));
  std::iota(made.ids.begin(), made.ids.end(), first);
  return made;
}

template <typename Call>
std::string error_of(ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("A text argument is a path, or a domain and a path") {
  CHECK(TextArgument::parse("x/code.txt").domain == "code");
  CHECK(TextArgument::parse("x/code.txt").path == "x/code.txt");
  CHECK(TextArgument::parse("-odd name.txt").path == "-odd name.txt");
  CHECK(TextArgument::parse("math=x/a=b.txt").domain == "math");
  CHECK(TextArgument::parse("math=x/a=b.txt").path == "x/a=b.txt");
  const TempDir folder;
  const std::string existing = (folder / "a=b.txt").string();
  write_bytes(existing, "x");
  CHECK(TextArgument::parse(existing).path == existing);
  CHECK(TextArgument::parse(existing).domain == "a=b");
  for (const std::string wrong : {"", "=x", "x="}) {
    CHECK_THAT(error_of(ErrorKind::Usage, [&] { TextArgument::parse(wrong); }), ContainsSubstring("--text"));
  }
}

TEST_CASE("Text is taken as it is, but for a BOM") {
  CHECK(read("plain\r\ntext\n").text == "plain\r\ntext\n");
  CHECK(read("\xEF\xBB\xBFmarked").text == "marked");
  CHECK(read("a\xEF\xBB\xBF"
             "b")
            .text ==
        "a\xEF\xBB\xBF"
        "b");
  CHECK(read("\xF4\x8F\xBF\xBF \xED\x9F\xBF \xEE\x80\x80 \xC2\x80").text.size() == 15);
  // sha256sum of the five bytes "hello", BOM not among them
  CHECK(read("hello").sha256 == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824");
  CHECK(read("\xEF\xBB\xBFhello").sha256 != read("hello").sha256);
}

TEST_CASE("Bad text is refused with the place of the damage") {
  CHECK_THAT(refusal(""), ContainsSubstring("holds no text"));
  CHECK_THAT(refusal("\xEF\xBB\xBF"), ContainsSubstring("holds no text"));
  CHECK_THAT(refusal(std::string("ab\0c", 4)), ContainsSubstring("NUL byte at offset 2"));
  CHECK_THAT(refusal("\xEF\xBB\xBF"
                     "ab\xFF"),
             ContainsSubstring("byte 0xff at offset 5"));
  CHECK_THAT(refusal(std::string(100, 'a') + "\x80"), ContainsSubstring("byte 0x80 at offset 100"));
  CHECK_THAT(refusal("a\xC0\xAF"), ContainsSubstring("offset 1"));           // overlong
  CHECK_THAT(refusal("ab\xE0\x9F\xBF"), ContainsSubstring("offset 2"));      // overlong
  CHECK_THAT(refusal("ab\xF0\x8F\xBF\xBF"), ContainsSubstring("offset 2"));  // overlong
  CHECK_THAT(refusal("abc\xED\xA0\x80"), ContainsSubstring("offset 3"));     // surrogate
  CHECK_THAT(refusal("\xF4\x90\x80\x80"), ContainsSubstring("offset 0"));    // above U+10FFFF
  CHECK_THAT(refusal("cut \xE6\xB5"), ContainsSubstring("offset 4"));
  CHECK_THAT(refusal("\xFF\xFEh\0i\0"), ContainsSubstring("UTF-16"));
  const TempDir folder;
  CHECK_THAT(error_of(ErrorKind::Input,
                      [&] {
                        read_text({"a", folder / "missing.txt"});
                      }),
             ContainsSubstring("missing.txt"));
  CHECK_THAT(error_of(ErrorKind::Input, [&] { read_text({"a", folder.path()}); }), ContainsSubstring("folder"));
}

TEST_CASE("JSONL becomes documents with a blank line between them") {
  const TextFile file = read(
      "{\"text\":\"one\\n\"}\r\n\n{\"messages\":[{\"role\":\"user\",\"content\":\"two\"},"
      "{\"role\":\"assistant\",\"content\":\"three\"}],\"id\":7}\n{\"text\":\"\\u00e9\"}",
      "a.jsonl");
  CHECK(file.text == "one\n\n\ntwo\n\nthree\n\né");
  REQUIRE(file.documents.size() == 3);
  CHECK(file.documents[1].messages[1].content == "three");
  CHECK(read("{\"text\":\"one\"}", "a.txt").text == "{\"text\":\"one\"}");
  ByteTokenizer tokenizer;
  CHECK(tokenizer.decode(tokenize(tokenizer, file).ids) == file.text);
  tokenizer.chat_template = "'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n'";
  CHECK(tokenizer.decode(tokenize(tokenizer, file).ids) ==
        "one\n\n\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nthree<|im_end|>\n\n\né");

  CHECK_THAT(refusal("{\"text\":\"a\"}\n{\"text\":}", "a.jsonl"), ContainsSubstring("line 2"));
  CHECK_THAT(refusal("\n\n[1]", "a.jsonl"), ContainsSubstring("line 3"));
  CHECK_THAT(refusal("{\"text\":5}", "a.jsonl"), ContainsSubstring("line 1"));
  CHECK_THAT(refusal("{\"other\":\"a\"}", "a.ndjson"), ContainsSubstring("\"text\" or \"messages\""));
  CHECK_THAT(refusal("{\"text\":\"a\\u0000b\"}", "a.jsonl"), ContainsSubstring("NUL"));
  CHECK_THAT(refusal("{\"text\":\"\\ud800\"}", "a.jsonl"), ContainsSubstring("line 1"));
  CHECK_THAT(refusal("{\"messages\":[]}", "a.jsonl"), ContainsSubstring("line 1"));
  CHECK_THAT(refusal("{\"messages\":[{\"role\":\"user\"}]}", "a.jsonl"), ContainsSubstring("\"content\""));
  CHECK_THAT(refusal("{\"text\":\"\"}\n", "a.jsonl"), ContainsSubstring("holds no text"));
}

TEST_CASE("Malformed parts become one U+FFFD each, as Rust and browsers do") {
  // From the Unicode standard, table 3-8, and Rust's String::from_utf8_lossy.
  CHECK(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64") == "a���b�c��d");
  CHECK(replace_invalid_utf8("\xE0\x80\xBF") == "���");
  CHECK(replace_invalid_utf8("caf\xC3") == "caf�");
}

TEST_CASE("Windows lie side by side from the start, and the tail is dropped") {
  for (const std::int64_t length : {8, 9, 15}) {
    const auto windows = sequential_windows({stream(length)}, 8, false, -1, 0);
    REQUIRE(windows.size() == 1);
    CHECK(windows[0].ids == stream(8).ids);
  }
  const auto windows = sequential_windows({stream(17), stream(3), stream(8, 100)}, 8, false, -1, 0);
  REQUIRE(windows.size() == 3);
  CHECK(windows[1].first_token == 8);
  CHECK(windows[1].ids == stream(8, 8).ids);
  CHECK(windows[2].stream == 2);
  CHECK(windows[2].ids == stream(8, 100).ids);
  // At most so many, shared among the streams.
  const auto some = sequential_windows({stream(80), stream(16), stream(80)}, 8, false, -1, 10);
  std::vector<int> count(3);
  for (const Window& window : some) ++count[static_cast<std::size_t>(window.stream)];
  CHECK(count == std::vector<int>{4, 2, 4});
  CHECK(sequential_windows({stream(80)}, 8, false, -1, 3).back().first_token == 16);
  CHECK(sequential_windows({stream(80)}, 8, false, -1, 99).size() == 10);
}

TEST_CASE("A window's BOS takes the place of one text token") {
  const auto windows = sequential_windows({stream(14)}, 8, true, 77, 0);
  REQUIRE(windows.size() == 2);
  CHECK(windows[0].ids == std::vector<std::int32_t>{77, 0, 1, 2, 3, 4, 5, 6});
  CHECK(windows[1].ids == std::vector<std::int32_t>{77, 7, 8, 9, 10, 11, 12, 13});
  CHECK(windows[1].first_token == 7);
  CHECK(sequential_windows({stream(7)}, 8, true, 77, 0).size() == 1);
  CHECK_THAT(error_of(ErrorKind::Input, [] { sequential_windows({stream(6)}, 8, true, 77, 0); }),
             ContainsSubstring("6 tokens"));
  CHECK_THAT(error_of(ErrorKind::Usage, [] { sequential_windows({stream(60)}, 8, true, -1, 0); }),
             ContainsSubstring("--bos"));
}

TEST_CASE("Text shorter than one window is refused with both numbers") {
  TokenStream named = stream(5);
  named.name = "my text.txt";
  CHECK_THAT(error_of(ErrorKind::Input, [&] { sequential_windows({named}, 8, false, -1, 0); }),
             ContainsSubstring("my text.txt: the text has 5 tokens"));
  for (const std::int64_t length : {0, 1, 7}) {
    const auto message = error_of(ErrorKind::Input, [&] { sequential_windows({stream(length)}, 8, false, -1, 0); });
    CHECK_THAT(message,
               ContainsSubstring("the text has " + plural(length, "token") + "; one window of --seqlen 8 needs 8"));
  }
  CHECK_THAT(error_of(ErrorKind::Input,
                      [] {
                        sequential_windows({stream(3), stream(5)}, 8, false, -1, 0);
                      }),
             ContainsSubstring("longest text has 5 tokens"));
  Rng rng(1);
  CHECK_THAT(error_of(ErrorKind::Input, [&] { sampled_windows({stream(23)}, 8, false, -1, 3, rng); }),
             ContainsSubstring("--samples 3: the text holds 2 windows"));
  CHECK_THAT(error_of(ErrorKind::Usage, [&] { sampled_windows({stream(23)}, 8, false, -1, 0, rng); }),
             ContainsSubstring("--samples 0"));
  CHECK_THAT(error_of(ErrorKind::Usage, [] { sequential_windows({stream(23)}, 1, false, -1, 0); }),
             ContainsSubstring("--seqlen 1"));
  CHECK_THAT(error_of(ErrorKind::Usage, [] { sequential_windows({stream(23)}, 8, false, -1, -1); }),
             ContainsSubstring("--max-windows -1"));
}

TEST_CASE("Samples are different windows, spread over the streams, the same for the same seed") {
  const std::vector<TokenStream> streams{stream(1000), stream(24, 5000), stream(1000, 10000)};
  Rng rng(42), again(42), other(43);
  const auto windows = sampled_windows(streams, 8, false, -1, 21, rng);
  REQUIRE(windows.size() == 21);
  std::vector<int> count(3);
  std::set<std::pair<int, std::int64_t>> starts;
  for (const Window& window : windows) {
    ++count[static_cast<std::size_t>(window.stream)];
    starts.emplace(window.stream, window.first_token);
    CHECK(window.first_token % 8 == 0);
    CHECK(window.ids.front() == streams[static_cast<std::size_t>(window.stream)].ids.front() + window.first_token);
    CHECK(window.ids.size() == 8);
  }
  CHECK(count == std::vector<int>{9, 3, 9});
  CHECK(starts.size() == 21);
  const auto same = [](const Window& a, const Window& b) {
    return a.stream == b.stream && a.first_token == b.first_token;
  };
  const auto repeated = sampled_windows(streams, 8, false, -1, 21, again);
  CHECK(std::equal(windows.begin(), windows.end(), repeated.begin(), same));
  const auto different = sampled_windows(streams, 8, false, -1, 21, other);
  CHECK_FALSE(std::equal(windows.begin(), windows.end(), different.begin(), same));
  // All of them, and exactly one.
  CHECK(sampled_windows({stream(24)}, 8, false, -1, 3, rng).size() == 3);
  CHECK(sampled_windows({stream(8)}, 8, false, -1, 1, rng).front().ids == stream(8).ids);
  CHECK(sampled_windows({stream(7)}, 8, true, 9, 1, rng).front().ids.size() == 8);
  // Every window of the grid is drawn about equally often.
  std::vector<int> drawn(10);
  for (int run = 0; run < 2000; ++run) {
    for (const Window& window : sampled_windows({stream(80)}, 8, false, -1, 3, rng))
      ++drawn[static_cast<std::size_t>(window.first_token / 8)];
  }
  for (const int times : drawn) CHECK(std::abs(times - 600) < 110);  // five standard deviations (20.5)
}

TEST_CASE("BOS modes are three words") {
  CHECK(parse_bos_mode("auto") == BosMode::Auto);
  CHECK(parse_bos_mode("never") == BosMode::Never);
  CHECK(parse_bos_mode("window") == BosMode::Window);
  CHECK_THAT(error_of(ErrorKind::Usage, [] { parse_bos_mode("always"); }), ContainsSubstring("auto, never or window"));
}
