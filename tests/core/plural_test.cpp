#include "support/catch.h"

#include <cstdint>

#include <kvq/core/plural.h>

using namespace kvq;

TEST_CASE("One is singular, every other count is plural") {
  CHECK(plural(1, "window") == "1 window");
  CHECK(plural(0, "window") == "0 windows");
  CHECK(plural(std::int64_t{2}, "kv head") == "2 kv heads");
  CHECK(plural(std::size_t{11}, "token") == "11 tokens");
}
