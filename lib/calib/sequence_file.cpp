#include <kvq/calib/sequence_file.h>

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

struct SequenceHeader {
  char magic[8] = {'k', 'v', 'q', 's', 'e', 'q', '0', '2'};
  char identity[64] = {};
  double loss = 0;
};
constexpr std::int64_t kHeaderBytes = 4096;  // keeps the tensors aligned to pages
static_assert(sizeof(SequenceHeader) <= kHeaderBytes);

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
  return kHeaderBytes + layer * layer_bytes() + before;
}

std::int64_t SequenceLayout::file_bytes() const { return kHeaderBytes + shape.layers * layer_bytes(); }

SequenceWriter::SequenceWriter(const std::filesystem::path& target, const SequenceLayout& layout,
                               const std::string& identity)
    : file_(target), layout_(layout), identity_(identity) {
  KVQ_ASSERT(identity_.size() == sizeof(SequenceHeader::identity));
}

void SequenceWriter::write(int layer, SequenceLayout::Part part, const void* data) {
  const std::int64_t bytes = layout_.part_bytes(part), offset = layout_.offset(layer, part);
  file_.put(data, bytes, offset);
  file_.start_flush(bytes, offset);  // while the next layer is computed
}

void SequenceWriter::commit(double loss) {
  SequenceHeader header;
  identity_.copy(header.identity, sizeof header.identity);
  header.loss = loss;
  file_.put(&header, sizeof header, 0);
  file_.commit();
}

SequenceReader::SequenceReader(const std::filesystem::path& path, const SequenceLayout& layout,
                               const std::string& identity)
    : file_(path), layout_(layout) {
  SequenceHeader header;
  const bool whole = file_.size() == layout.file_bytes();
  if (whole) file_.get(&header, sizeof header, 0);
  if (!whole || std::memcmp(header.magic, SequenceHeader{}.magic, sizeof header.magic) != 0 ||
      identity != std::string(header.identity, sizeof header.identity)) {
    fail(ErrorKind::Io,
         fmt::format("{}: is not a finished sequence of this run; remove it and run the same command again",
                     path.string()));
  }
  loss_ = header.loss;
}

void SequenceReader::read(int layer, SequenceLayout::Part part, void* out) const {
  file_.get(out, layout_.part_bytes(part), layout_.offset(layer, part));
}

}  // namespace kvq
