#include <kvq/calib/weight_sums.h>

#include <cstring>

#include <fmt/format.h>

#include <kvq/core/checksum.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

struct SumsHeader {
  char magic[8] = {'k', 'v', 'q', 's', 'u', 'm', '0', '2'};
  char identity[64] = {};
  std::int64_t sequences = 0;
};

constexpr auto kMatrices = static_cast<std::int64_t>(std::size(kBlockMatrices));

std::int64_t piece(int layer, BlockMatrix matrix) { return layer * kMatrices + static_cast<std::int64_t>(matrix); }
std::int64_t losses_piece(const BlockShape& shape) { return shape.kv.layers * kMatrices; }

// Header, checksums of the matrices and of the losses, losses, layers in ascending order.
std::int64_t first_loss(const BlockShape& shape) {
  return static_cast<std::int64_t>(sizeof(SumsHeader)) + PieceSums(losses_piece(shape) + 1).bytes();
}
std::int64_t first_matrix(const BlockShape& shape, std::int64_t sequences) {
  return first_loss(shape) + sequences * std::int64_t{sizeof(double)};
}

std::int64_t sums_offset(const BlockShape& shape, std::int64_t sequences, int layer, BlockMatrix matrix) {
  std::int64_t before = layer * shape.layer_elements();
  for (const BlockMatrix earlier : kBlockMatrices) {
    if (earlier == matrix) break;
    before += shape.elements(earlier);
  }
  return first_matrix(shape, sequences) + before * std::int64_t{sizeof(float)};
}

std::int64_t sums_bytes(const BlockShape& shape, std::int64_t sequences) {
  return first_matrix(shape, sequences) + shape.kv.layers * shape.layer_elements() * std::int64_t{sizeof(float)};
}

}  // namespace

WeightSumsWriter::WeightSumsWriter(const std::filesystem::path& target, const BlockShape& shape,
                                   const std::string& identity, std::int64_t sequences)
    : file_(target), shape_(shape), identity_(identity), sequences_(sequences), sums_(losses_piece(shape) + 1) {
  KVQ_ASSERT(identity_.size() == sizeof(SumsHeader::identity));
}

void WeightSumsWriter::write(int layer, BlockMatrix matrix, std::span<const float> sums) {
  KVQ_ASSERT(static_cast<std::int64_t>(sums.size()) == shape_.elements(matrix));
  const auto bytes = static_cast<std::int64_t>(sums.size_bytes());
  const std::int64_t offset = sums_offset(shape_, sequences_, layer, matrix);
  sums_.set(piece(layer, matrix), checksum_of(sums.data(), bytes));
  file_.put(sums.data(), bytes, offset);
  file_.start_flush(bytes, offset);  // while the next layer is computed
}

void WeightSumsWriter::commit(std::span<const double> losses) {
  KVQ_ASSERT(static_cast<std::int64_t>(losses.size()) == sequences_);
  SumsHeader header;
  identity_.copy(header.identity, sizeof header.identity);
  header.sequences = sequences_;
  const auto bytes = static_cast<std::int64_t>(losses.size_bytes());
  sums_.set(losses_piece(shape_), checksum_of(losses.data(), bytes));
  sums_.seal(&header, sizeof header);
  file_.put(&header, sizeof header, 0);
  file_.put(sums_.data(), sums_.bytes(), sizeof header);
  file_.put(losses.data(), bytes, first_loss(shape_));
  file_.commit();
}

WeightSumsReader::WeightSumsReader(const std::filesystem::path& path, const BlockShape& shape,
                                   const std::string& identity, std::int64_t sequences)
    : file_(path),
      shape_(shape),
      sequences_(sequences),
      sums_(losses_piece(shape) + 1),
      losses_(static_cast<std::size_t>(sequences)) {
  SumsHeader header;
  const std::int64_t loss_bytes = sequences * std::int64_t{sizeof(double)};
  const bool whole = file_.size() == sums_bytes(shape, sequences);
  if (whole) {
    file_.get(&header, sizeof header, 0);
    file_.get(sums_.data(), sums_.bytes(), sizeof header);
    file_.get(losses_.data(), loss_bytes, first_loss(shape));
  }
  if (!whole || std::memcmp(header.magic, SumsHeader{}.magic, sizeof header.magic) != 0 ||
      identity != std::string(header.identity, sizeof header.identity) || header.sequences != sequences ||
      !sums_.is_sealed(&header, sizeof header) ||
      !sums_.agrees(losses_piece(shape), checksum_of(losses_.data(), loss_bytes))) {
    fail(ErrorKind::Io,
         fmt::format("{}: does not hold the finished sums of this run; remove it and run the same command again",
                     path.string()));
  }
}

void WeightSumsReader::read(int layer, BlockMatrix matrix, std::span<float> sums) const {
  KVQ_ASSERT(static_cast<std::int64_t>(sums.size()) == shape_.elements(matrix));
  const auto bytes = static_cast<std::int64_t>(sums.size_bytes());
  file_.get(sums.data(), bytes, sums_offset(shape_, sequences_, layer, matrix));
  if (!sums_.agrees(piece(layer, matrix), checksum_of(sums.data(), bytes))) {
    fail(ErrorKind::Io, fmt::format("{}: {} of layer {} is damaged; run the same command again, which begins again",
                                    file_.path().string(), block_matrix_name(matrix), layer));
  }
}

void WeightSumsReader::check() const {
  std::vector<float> sums;
  for (int layer = 0; layer < shape_.kv.layers; ++layer) {
    for (const BlockMatrix matrix : kBlockMatrices) {
      sums.resize(static_cast<std::size_t>(shape_.elements(matrix)));
      read(layer, matrix, sums);
    }
  }
}

}  // namespace kvq
