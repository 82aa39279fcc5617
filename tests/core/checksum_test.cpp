#include "support/catch.h"

#include <string>

#include <kvq/core/checksum.h>

using namespace kvq;

TEST_CASE("Checksums are CRC-32 and a length") {
  CHECK(checksum_of("") == 0);
  CHECK(checksum_of("123456789") == (std::uint64_t{9} << 32 | 0xCBF43926u));
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
