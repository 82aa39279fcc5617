// The index of blocks: what it takes, and that it refuses what cannot be.

#include <kvq/coding/block_index.h>

#include "coding/streams.h"

using namespace kvq;

namespace {

BlockIndex index_of(std::initializer_list<std::uint64_t> lengths) {
  BlockIndex index;
  for (const std::uint64_t length : lengths) index.add(length);
  return index;
}

std::vector<std::byte> written(const BlockIndex& index, std::size_t payload) {
  std::vector<std::byte> bytes;
  index.write(bytes);
  bytes.resize(bytes.size() + payload);
  return bytes;
}

}  // namespace

TEST_CASE("Offsets of blocks come back, in the fewest bytes for each length") {
  struct Case {
    BlockIndex index;
    std::size_t bytes;
  };
  for (const Case& one :
       {Case{index_of({}), 0}, Case{index_of({9}), 17}, Case{index_of({9, 9, 9, 4}), 17},
        Case{index_of({9, 8, 9}), 1 + 3}, Case{index_of({256, 8, 9}), 1 + 6}, Case{index_of({65536, 0, 9}), 1 + 9}}) {
    const auto bytes = written(one.index, one.index.payload_bytes());
    CHECK(bytes.size() - one.index.payload_bytes() == one.bytes);
    ByteReader reader(bytes, "test");
    const BlockIndex read = BlockIndex::read(reader, one.index.blocks());
    CHECK(reader.offset() == one.bytes);
    REQUIRE(read.blocks() == one.index.blocks());
    for (std::size_t block = 0; block < read.blocks(); ++block) {
      CHECK(read.begin(block) == one.index.begin(block));
      CHECK(read.end(block) == one.index.end(block));
    }
  }
}

TEST_CASE("An index that promises more than there is, is refused before it is believed") {
  for (const BlockIndex& index : {index_of({9, 9, 9, 4}), index_of({9, 8, 9})}) {
    const auto bytes = written(index, index.payload_bytes());
    const int refused = kvq::test::damage_everywhere(bytes, [&](auto damaged) {
      ByteReader reader(damaged, "test");
      const BlockIndex read = BlockIndex::read(reader, index.blocks());
      CHECK(read.payload_bytes() <= damaged.size());
    });
    CHECK(refused >= static_cast<int>(bytes.size()));
    ByteReader reader(bytes, "test");
    CHECK_THROWS_AS(BlockIndex::read(reader, std::uint64_t{1} << 62), Error);
  }
}
