#include <kvq/calib/weight_sums.h>

#include <cstring>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

struct SumsHeader {
  char magic[8] = {'k', 'v', 'q', 's', 'u', 'm', '0', '1'};
  char identity[64] = {};
  std::int64_t sequences = 0;
};

// Header, losses, layers in ascending order.
std::int64_t first_matrix(std::int64_t sequences) {
  return static_cast<std::int64_t>(sizeof(SumsHeader)) + sequences * std::int64_t{sizeof(double)};
}

std::int64_t sums_offset(const BlockShape& shape, std::int64_t sequences, int layer, BlockMatrix matrix) {
  std::int64_t before = layer * shape.layer_elements();
  for (const BlockMatrix earlier : kBlockMatrices) {
    if (earlier == matrix) break;
    before += shape.elements(earlier);
  }
  return first_matrix(sequences) + before * std::int64_t{sizeof(float)};
}

std::int64_t sums_bytes(const BlockShape& shape, std::int64_t sequences) {
  return first_matrix(sequences) + shape.kv.layers * shape.layer_elements() * std::int64_t{sizeof(float)};
}

}  // namespace

WeightSumsWriter::WeightSumsWriter(const std::filesystem::path& target, const BlockShape& shape,
                                   const std::string& identity, std::int64_t sequences)
    : file_(target), shape_(shape), identity_(identity), sequences_(sequences) {
  KVQ_ASSERT(identity_.size() == sizeof(SumsHeader::identity));
}

void WeightSumsWriter::write(int layer, BlockMatrix matrix, std::span<const float> sums) {
  KVQ_ASSERT(static_cast<std::int64_t>(sums.size()) == shape_.elements(matrix));
  const auto bytes = static_cast<std::int64_t>(sums.size_bytes());
  const std::int64_t offset = sums_offset(shape_, sequences_, layer, matrix);
  file_.put(sums.data(), bytes, offset);
  file_.start_flush(bytes, offset);  // while the next layer is computed
}

void WeightSumsWriter::commit(std::span<const double> losses) {
  KVQ_ASSERT(static_cast<std::int64_t>(losses.size()) == sequences_);
  SumsHeader header;
  identity_.copy(header.identity, sizeof header.identity);
  header.sequences = sequences_;
  file_.put(&header, sizeof header, 0);
  file_.put(losses.data(), static_cast<std::int64_t>(losses.size_bytes()), sizeof header);
  file_.commit();
}

WeightSumsReader::WeightSumsReader(const std::filesystem::path& path, const BlockShape& shape,
                                   const std::string& identity, std::int64_t sequences)
    : file_(path), shape_(shape), sequences_(sequences), losses_(static_cast<std::size_t>(sequences)) {
  SumsHeader header;
  const bool whole = file_.size() == sums_bytes(shape, sequences);
  if (whole) file_.get(&header, sizeof header, 0);
  if (!whole || std::memcmp(header.magic, SumsHeader{}.magic, sizeof header.magic) != 0 ||
      identity != std::string(header.identity, sizeof header.identity) || header.sequences != sequences) {
    fail(ErrorKind::Io,
         fmt::format("{}: does not hold the finished sums of this run; remove it and run the same command again",
                     path.string()));
  }
  file_.get(losses_.data(), sequences * std::int64_t{sizeof(double)}, sizeof header);
}

void WeightSumsReader::read(int layer, BlockMatrix matrix, std::span<float> sums) const {
  KVQ_ASSERT(static_cast<std::int64_t>(sums.size()) == shape_.elements(matrix));
  file_.get(sums.data(), static_cast<std::int64_t>(sums.size_bytes()), sums_offset(shape_, sequences_, layer, matrix));
}

}  // namespace kvq
