#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/config/toml_table.h>
#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Values come back with their type; an absent key is no value") {
  const TomlTable table =
      TomlTable::parse("name = \"x\"\ncount = 3\nshare = 0.5\non = true\n[inner]\ndeep = 7\n", "text");
  CHECK(table.text("name") == "x");
  CHECK(table.integer("count") == 3);
  CHECK(table.number("share") == 0.5);
  CHECK(table.number("count") == 3.0);
  CHECK(table.flag("on") == true);
  CHECK_FALSE(table.text("absent").has_value());
  CHECK_FALSE(table.table("absent").has_value());
  const auto inner = table.table("inner");
  REQUIRE(inner.has_value());
  CHECK(inner->integer("deep") == 7);
  CHECK_NOTHROW(table.reject_unknown());
  CHECK_NOTHROW(inner->reject_unknown());
}

TEST_CASE("One integer is a list of one; other things are no list of integers") {
  const TomlTable table =
      TomlTable::parse("one = 3\nmany = [3, -4]\nnone = []\nmixed = [1, 2.0]\ntext = \"1\"\n", "my.toml");
  CHECK(table.integers("one") == std::vector<std::int64_t>{3});
  CHECK(table.integers("many") == std::vector<std::int64_t>{3, -4});
  CHECK_FALSE(table.integers("absent").has_value());
  CHECK_THROWS_WITH(table.integers("none"), ContainsSubstring("line 3") && ContainsSubstring("not empty"));
  CHECK_THROWS_WITH(table.integers("mixed"), ContainsSubstring("integers only"));
  CHECK_THROWS_WITH(table.integers("text"), ContainsSubstring("must be an integer"));
}

TEST_CASE("A key that nobody asked for is refused with its line and the known keys") {
  const TomlTable table = TomlTable::parse("a = 1\nb = 2\ntypo = 3\n", "my.toml");
  table.integer("a");
  table.integer("b");
  CHECK_THROWS_WITH(table.reject_unknown(),
                    ContainsSubstring("my.toml, line 3") && ContainsSubstring("'typo'") && ContainsSubstring("a, b"));
}

TEST_CASE("Wrong types and syntax errors say what is needed and where") {
  const TomlTable table = TomlTable::parse("a = 1\nb = \"x\"\nc = inf\n[t]\nd = 1.5\n", "my.toml");
  CHECK_THROWS_WITH(table.text("a"), ContainsSubstring("'a' must be a string"));
  CHECK_THROWS_WITH(table.integer("b"), ContainsSubstring("line 2") && ContainsSubstring("must be an integer"));
  CHECK_THROWS_WITH(table.number("c"), ContainsSubstring("finite"));
  CHECK_THROWS_WITH(table.flag("b"), ContainsSubstring("true or false"));
  CHECK_THROWS_WITH(table.table("a"), ContainsSubstring("must be a table"));
  CHECK_THROWS_WITH(table.table("t")->integer("d"), ContainsSubstring("'t.d'"));
  CHECK_THROWS_WITH(TomlTable::parse("a = \n", "my.toml"), ContainsSubstring("my.toml, line 1"));
  CHECK_THROWS_WITH(TomlTable::parse("a = 1\na = 2\n", "my.toml"), ContainsSubstring("line 2"));
}

TEST_CASE("Files that cannot be read are named") {
  TempDir folder;
  CHECK_THROWS_WITH(TomlTable::read(folder / "absent.toml"), ContainsSubstring("absent.toml"));
  CHECK_THROWS_WITH(TomlTable::read(folder.path()), ContainsSubstring("is a folder"));
  write_bytes(folder / "empty.toml", "");
  CHECK_NOTHROW(TomlTable::read(folder / "empty.toml").reject_unknown());
}
