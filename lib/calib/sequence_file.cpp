#include <kvq/calib/sequence_file.h>

#include <cstring>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/checksum.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

struct SequenceHeader {
  char magic[8] = {'k', 'v', 'q', 's', 'e', 'q', '0', '3'};
  char identity[64] = {};
  std::int64_t sequence = 0;
  double loss = 0;
};
constexpr std::int64_t kSumsOffset = sizeof(SequenceHeader), kPage = 4096;

}  // namespace

std::int64_t SequenceLayout::part_bytes(Part part) const {
  if (!has(part)) return 0;
  return part == QueryMoment || part == KeyMetric ? moment_bytes()
         : part == AttentionMass                  ? mass_bytes()
                                                  : tensor_bytes();
}

bool SequenceLayout::has(Part part) const {
  if (part == KeyGrad || part == ValueGrad) return gradients;
  return part != KeyMetric || metric;
}

std::int64_t SequenceLayout::layer_bytes() const {
  std::int64_t bytes = 0;
  for (int part = Key; part <= AttentionMass; ++part) bytes += part_bytes(static_cast<Part>(part));
  return bytes;
}

std::int64_t SequenceLayout::offset(int layer, Part part) const {
  std::int64_t before = 0;
  for (int earlier = Key; earlier < part; ++earlier) before += part_bytes(static_cast<Part>(earlier));
  return first_layer() + layer * layer_bytes() + before;
}

std::int64_t SequenceLayout::first_layer() const {
  const std::int64_t before = kSumsOffset + PieceSums(pieces()).bytes();
  return (before + kPage - 1) / kPage * kPage;  // keeps the tensors aligned to pages
}
std::int64_t SequenceLayout::file_bytes() const { return first_layer() + shape.layers * layer_bytes(); }

SequenceWriter::SequenceWriter(const std::filesystem::path& target, const SequenceLayout& layout,
                               const std::string& identity, std::int64_t sequence)
    : file_(target), layout_(layout), identity_(identity), sequence_(sequence), sums_(layout.pieces()) {
  KVQ_ASSERT(identity_.size() == sizeof(SequenceHeader::identity));
}

void SequenceWriter::write(int layer, SequenceLayout::Part part, const void* data) {
  const std::int64_t bytes = layout_.part_bytes(part), offset = layout_.offset(layer, part);
  sums_.set(layout_.piece(layer, part), checksum_of(data, bytes));
  file_.put(data, bytes, offset);
  file_.start_flush(bytes, offset);  // while the next layer is computed
}

void SequenceWriter::commit(double loss) {
  SequenceHeader header;
  identity_.copy(header.identity, sizeof header.identity);
  header.sequence = sequence_;
  header.loss = loss;
  sums_.seal(&header, sizeof header);
  file_.put(&header, sizeof header, 0);
  file_.put(sums_.data(), sums_.bytes(), kSumsOffset);
  file_.commit();
}

SequenceReader::SequenceReader(const std::filesystem::path& path, const SequenceLayout& layout,
                               const std::string& identity, std::int64_t sequence)
    : file_(path), layout_(layout), sums_(layout.pieces()) {
  SequenceHeader header;
  const bool whole = file_.size() == layout.file_bytes();
  if (whole) {
    file_.get(&header, sizeof header, 0);
    file_.get(sums_.data(), sums_.bytes(), kSumsOffset);
  }
  if (!whole || std::memcmp(header.magic, SequenceHeader{}.magic, sizeof header.magic) != 0 ||
      identity != std::string(header.identity, sizeof header.identity) || header.sequence != sequence ||
      !sums_.is_sealed(&header, sizeof header)) {
    fail(ErrorKind::Io,
         fmt::format("{}: is not a finished sequence of this run; remove it and run the same command again",
                     path.string()));
  }
  loss_ = header.loss;
}

void SequenceReader::read(int layer, SequenceLayout::Part part, void* out) const {
  const std::int64_t bytes = layout_.part_bytes(part);
  file_.get(out, bytes, layout_.offset(layer, part));
  if (!sums_.agrees(layout_.piece(layer, part), checksum_of(out, bytes))) {
    fail(ErrorKind::Io, fmt::format("{}: layer {} is damaged; run the same command again, which computes the sequence "
                                    "again",
                                    file_.path().string(), layer));
  }
}

void SequenceReader::check(int layer) const {
  std::vector<char> buffer;
  for (int part = SequenceLayout::Key; part <= SequenceLayout::AttentionMass; ++part) {
    if (!layout_.has(static_cast<SequenceLayout::Part>(part))) continue;
    buffer.resize(static_cast<std::size_t>(layout_.part_bytes(static_cast<SequenceLayout::Part>(part))));
    read(layer, static_cast<SequenceLayout::Part>(part), buffer.data());
  }
}

}  // namespace kvq
