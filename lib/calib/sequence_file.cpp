#include <kvq/calib/sequence_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

struct Header {
  char magic[8] = {'k', 'v', 'q', 's', 'e', 'q', '0', '1'};
  char identity[64] = {};
  double loss = 0;
};
constexpr std::int64_t kHeaderBytes = 4096;  // keeps the tensors aligned to pages
static_assert(sizeof(Header) <= kHeaderBytes);

[[noreturn]] void io_error(const std::filesystem::path& path, const char* what) {
  fail(ErrorKind::Io, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

std::int64_t SequenceLayout::part_bytes(Part part) const {
  return part == QueryMoment ? moment_bytes() : part == AttentionMass ? mass_bytes() : tensor_bytes();
}

std::int64_t SequenceLayout::offset(int layer, Part part) const {
  const std::int64_t before = part == AttentionMass ? 4 * tensor_bytes() + moment_bytes() : part * tensor_bytes();
  return kHeaderBytes + layer * layer_bytes() + before;
}

std::int64_t SequenceLayout::file_bytes() const { return kHeaderBytes + shape.layers * layer_bytes(); }

SequenceWriter::SequenceWriter(std::filesystem::path target, const SequenceLayout& layout, const std::string& identity)
    : target_(std::move(target)), temporary_(target_.string() + ".part"), layout_(layout), identity_(identity) {
  KVQ_ASSERT(identity_.size() == sizeof(Header::identity));
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) io_error(temporary_, "cannot be created");
}

SequenceWriter::~SequenceWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void SequenceWriter::put(const void* data, std::int64_t bytes, std::int64_t offset) {
  const auto* in = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::pwrite(descriptor_, in, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) io_error(temporary_, "write error");
    in += done;
    bytes -= done;
    offset += done;
  }
}

void SequenceWriter::write(int layer, SequenceLayout::Part part, const void* data) {
  const std::int64_t bytes = layout_.part_bytes(part), offset = layout_.offset(layer, part);
  put(data, bytes, offset);
  // The disk works while the next layer is computed, so that the flush at the end has little left to do.
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void SequenceWriter::commit(double loss) {
  Header header;
  identity_.copy(header.identity, sizeof header.identity);
  header.loss = loss;
  put(&header, sizeof header, 0);
  if (::fsync(descriptor_) != 0) io_error(temporary_, "cannot be flushed");
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    ::unlink(temporary_.c_str());
    io_error(temporary_, "cannot be closed");
  }
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) io_error(temporary_, "cannot be renamed");
  const int folder = ::open(target_.parent_path().c_str(), O_RDONLY | O_CLOEXEC);
  if (folder < 0) io_error(target_.parent_path(), "cannot be opened");
  const bool flushed = ::fsync(folder) == 0;
  ::close(folder);
  if (!flushed) io_error(target_.parent_path(), "cannot be flushed");
}

SequenceReader::SequenceReader(const std::filesystem::path& path, const SequenceLayout& layout,
                               const std::string& identity)
    : path_(path), layout_(layout) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) io_error(path, "cannot be opened");
  Header header;
  struct stat status {};
  const bool whole = ::fstat(descriptor_, &status) == 0 && status.st_size == layout.file_bytes() &&
                     ::pread(descriptor_, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header);
  if (whole && std::memcmp(header.magic, Header{}.magic, sizeof header.magic) == 0 &&
      identity == std::string(header.identity, sizeof header.identity)) {
    loss_ = header.loss;
    return;
  }
  ::close(descriptor_);
  fail(ErrorKind::Io,
       fmt::format("{}: is not a finished sequence of this run; remove it and run the same command again",
                   path.string()));
}

SequenceReader::~SequenceReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SequenceReader::SequenceReader(SequenceReader&& other) noexcept
    : path_(std::move(other.path_)),
      layout_(other.layout_),
      descriptor_(std::exchange(other.descriptor_, -1)),
      loss_(other.loss_) {}

void SequenceReader::read(int layer, SequenceLayout::Part part, void* out) const {
  std::int64_t bytes = layout_.part_bytes(part), offset = layout_.offset(layer, part);
  auto* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t done = ::pread(descriptor_, to, static_cast<std::size_t>(bytes), offset);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) io_error(path_, "read error");
    if (done == 0) fail(ErrorKind::Io, fmt::format("{}: was cut short during the run", path_.string()));
    to += done;
    bytes -= done;
    offset += done;
  }
}

}  // namespace kvq
