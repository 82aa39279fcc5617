#include <kvq/artifacts/internal/vector_datasets.h>

#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/vector_sizes.h>

namespace kvq {

namespace {

constexpr double kMostBlockBytes = 1 << 30;  // a block is a page of tokens

bool has_codecs(const SideQuantizer& side) { return side.recipe.codebook == CodebookKind::Vector; }

}  // namespace

void write_codec_tables(const h5::Group& group, const SideQuantizer& side) {
  if (!has_codecs(side)) return;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int32_t> starts = {0};
  for (const std::vector<std::byte>& tables : side.vector_tables) {
    for (const std::byte byte : tables) bytes.push_back(std::to_integer<std::uint8_t>(byte));
    starts.push_back(static_cast<std::int32_t>(bytes.size()));
  }
  group.write("codec_tables", {bytes.size()}, std::span<const std::uint8_t>(bytes));
  group.write("codec_starts", {starts.size()}, std::span<const std::int32_t>(starts));
  if (has_varying_blocks(side.recipe.vector)) group.set("block_bytes", side.block_bytes);
}

void read_codec_tables(const h5::Group& group, SideQuantizer& side) {
  if (!has_codecs(side)) return;
  const std::vector<std::uint8_t> bytes = group.read_bytes("codec_tables", {h5::kAny});
  const auto codecs = static_cast<std::uint64_t>(codec_count(side.recipe, side.kv_heads));
  const std::vector<std::int32_t> starts = group.read_ints("codec_starts", {codecs + 1});
  for (std::size_t codec = 0; codec < codecs; ++codec) {
    const std::int32_t begin = starts[codec], end = starts[codec + 1];
    if (begin < 0 || end <= begin || static_cast<std::size_t>(end) > bytes.size() || (codec == 0 && begin != 0)) {
      group.damaged("codec_starts",
                    fmt::format("has {} and {} for codec {}: tables of {} bytes in all stand one behind the other",
                                begin, end, codec, bytes.size()));
    }
    std::vector<std::byte> tables(static_cast<std::size_t>(end - begin));
    std::memcpy(tables.data(), bytes.data() + begin, tables.size());
    side.vector_tables.push_back(std::move(tables));
  }
  if (static_cast<std::size_t>(starts.back()) != bytes.size())
    group.damaged("codec_starts", fmt::format("ends at {}, the tables at {}", starts.back(), bytes.size()));
  try {
    head_codecs(side);
  } catch (const Error& error) {
    group.damaged("codec_tables", error.what());
  }
  if (!has_varying_blocks(side.recipe.vector)) return;
  side.block_bytes = group.number("block_bytes");
  if (!(side.block_bytes >= 0 && side.block_bytes < kMostBlockBytes))
    group.damaged("block_bytes", fmt::format("attribute is {}, a number of bytes is needed", side.block_bytes));
}

}  // namespace kvq
