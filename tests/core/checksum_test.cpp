#include "support/catch.h"

#include <string>

#include <kvq/core/checksum.h>

using namespace kvq;

TEST_CASE("Checksums are XXH64") {
  CHECK(checksum_of("") == 0xEF46DB3751D8E999u);
  CHECK(checksum_of("a") == 0xD24EC4F1A98C6E5Bu);
  CHECK(checksum_of("abc") == 0x44BC2CF5AD770999u);
  CHECK(checksum_of("Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1u);  // more than a stripe
}

TEST_CASE("Every flipped bit and every missing byte changes a checksum") {
  std::string text;
  for (int index = 0; index < 110; ++index) text += static_cast<char>(index * 37);
  const std::uint64_t good = checksum_of(text);
  for (std::size_t position = 0; position < text.size(); ++position) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = text;
      bad[position] = static_cast<char>(bad[position] ^ (1 << bit));
      CHECK(checksum_of(bad) != good);
    }
    CHECK(checksum_of(text.substr(0, position)) != good);
  }
}
