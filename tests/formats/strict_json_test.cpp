#include <string>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/formats/hf_folder.h>
#include <kvq/formats/strict_json.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Strict JSON gives the document that nlohmann's own parser gives") {
  const std::string texts[] = {
      R"({"a": 1, "b": [1, -2, 3.5, true, null, "x", {"a": {}}, []], "c": {"a": [[1], [[2, 3]], {}], "b": "ü\u00e4"}})",
      "  [18446744073709551615, -9223372036854775808, 1e300, 0.1]\n",
      "3",
      "\"text\"",
      "null",
      "{}",
      "[]"};
  for (const std::string& text : texts) CHECK(parse_strict_json("x", text) == nlohmann::json::parse(text));
}

TEST_CASE("Strict JSON refuses what a lenient reader lets pass") {
  const std::pair<std::string, const char*> cases[] = {
      {R"({"a": 1, "a": 2})", "key 'a' occurs twice"},
      {R"([{"b": {"x": 1, "y": 2, "x": 3}}])", "key 'x' occurs twice"},
      {R"({"a": 1, "\u0061": 2})", "key 'a' occurs twice"},
      {"{} {}", "not valid JSON at byte 4"},
      {std::string("{}\0", 3), "not valid JSON at byte 3"},
      {"{\"a\": \"\xff\"}", "not valid JSON"},
      {"{\"a\": \"\xc0\x80\"}", "not valid JSON"},
      {"{\"a\": 1e999}", "not valid JSON"},
      {"{\"a\": NaN}", "not valid JSON"},
      {"{'a': 1}", "not valid JSON at byte 2"},
      {"{\"a\": 1,}", "not valid JSON at byte 9"},
      {"[1, 2", "not valid JSON"},
      {"", "not valid JSON"},
      {std::string(65, '[') + std::string(65, ']'), "more than 64 levels"},
      {std::string(1 << 20, '['), "more than 64 levels"},
      {"{\"a\":" + std::string(1 << 20, '{'), "not valid JSON"},
  };
  for (const auto& [text, reason] : cases) {
    INFO(text.substr(0, 40));
    CHECK_THROWS_WITH(parse_strict_json("some file", text),
                      ContainsSubstring("some file") && ContainsSubstring(reason));
  }
  CHECK_NOTHROW(parse_strict_json("x", std::string(64, '[') + std::string(64, ']')));
}

TEST_CASE("A JSON file's error names the file") {
  const TempDir folder;
  write_bytes(folder / "config.json", "{\"a\": 1, \"a\": 1}");
  CHECK_THROWS_WITH(read_json_file(folder / "config.json"), ContainsSubstring((folder / "config.json").string()));
  write_bytes(folder / "config.json", "{\"a\": 1}");
  CHECK(read_json_file(folder / "config.json")["a"] == 1);
  CHECK_THROWS_AS(read_json_file(folder / "absent.json"), Error);
  CHECK_THROWS_AS(read_json_file(folder.path()), Error);
}
