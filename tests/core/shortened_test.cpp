#include <kvq/core/shortened.h>

#include "support/catch.h"

using namespace kvq;

TEST_CASE("What a message quotes is cut between characters, and what is short stays as it is") {
  CHECK(shortened("") == "");
  CHECK(shortened(std::string(60, 'a')) == std::string(60, 'a'));
  CHECK(shortened(std::string(61, 'a')) == std::string(60, 'a') + "…");
  CHECK(shortened("aäb", 2) == "a…");
  CHECK(shortened("aäb", 3) == "aä…");
  CHECK(shortened("aäb", 4) == "aäb");
  CHECK(shortened("\xbf\xbf\xbf", 2) == "…");  // no UTF-8 at all
}
