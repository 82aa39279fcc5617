#include <kvq/calib/weight_sums.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

struct Header {
  char magic[8] = {'k', 'v', 'q', 's', 'u', 'm', '0', '1'};
  char identity[64] = {};
  std::int64_t sequences = 0;
};

[[noreturn]] void io_error(const std::filesystem::path& path, const char* what) {
  fail(ErrorKind::Io, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

// Header, losses, layers in ascending order.
std::int64_t first_matrix(std::int64_t sequences) {
  return static_cast<std::int64_t>(sizeof(Header)) + sequences * std::int64_t{sizeof(double)};
}

std::int64_t offset_of(const BlockShape& shape, std::int64_t sequences, int layer, BlockMatrix matrix) {
  std::int64_t before = layer * shape.layer_elements();
  for (const BlockMatrix earlier : kBlockMatrices) {
    if (earlier == matrix) break;
    before += shape.elements(earlier);
  }
  return first_matrix(sequences) + before * std::int64_t{sizeof(float)};
}

std::int64_t file_bytes(const BlockShape& shape, std::int64_t sequences) {
  return first_matrix(sequences) + shape.kv.layers * shape.layer_elements() * std::int64_t{sizeof(float)};
}

}  // namespace

WeightSumsWriter::WeightSumsWriter(std::filesystem::path target, const BlockShape& shape, const std::string& identity,
                                   std::int64_t sequences)
    : target_(std::move(target)),
      temporary_(target_.string() + ".part"),
      shape_(shape),
      identity_(identity),
      sequences_(sequences) {
  KVQ_ASSERT(identity_.size() == sizeof(Header::identity));
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) io_error(temporary_, "cannot be created");
}

WeightSumsWriter::~WeightSumsWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void WeightSumsWriter::put(const void* data, std::int64_t bytes, std::int64_t offset) {
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

void WeightSumsWriter::write(int layer, BlockMatrix matrix, std::span<const float> sums) {
  KVQ_ASSERT(static_cast<std::int64_t>(sums.size()) == shape_.elements(matrix));
  put(sums.data(), static_cast<std::int64_t>(sums.size_bytes()), offset_of(shape_, sequences_, layer, matrix));
}

void WeightSumsWriter::commit(std::span<const double> losses) {
  KVQ_ASSERT(static_cast<std::int64_t>(losses.size()) == sequences_);
  Header header;
  identity_.copy(header.identity, sizeof header.identity);
  header.sequences = sequences_;
  put(&header, sizeof header, 0);
  put(losses.data(), static_cast<std::int64_t>(losses.size_bytes()), sizeof header);
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

WeightSumsReader::WeightSumsReader(const std::filesystem::path& path, const BlockShape& shape,
                                   const std::string& identity, std::int64_t sequences)
    : path_(path), shape_(shape), sequences_(sequences), losses_(static_cast<std::size_t>(sequences)) {
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) io_error(path, "cannot be opened");
  Header header;
  struct stat status {};
  const bool whole = ::fstat(descriptor_, &status) == 0 && status.st_size == file_bytes(shape, sequences) &&
                     ::pread(descriptor_, &header, sizeof header, 0) == static_cast<ssize_t>(sizeof header);
  if (whole && std::memcmp(header.magic, Header{}.magic, sizeof header.magic) == 0 &&
      identity == std::string(header.identity, sizeof header.identity) && header.sequences == sequences) {
    get(losses_.data(), sequences * std::int64_t{sizeof(double)}, sizeof header);
    return;
  }
  ::close(std::exchange(descriptor_, -1));
  fail(ErrorKind::Io, fmt::format("{}: does not hold the finished sums of this run; remove it and run the same command "
                                  "again",
                                  path.string()));
}

WeightSumsReader::~WeightSumsReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void WeightSumsReader::get(void* data, std::int64_t bytes, std::int64_t offset) const {
  auto* to = static_cast<char*>(data);
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

void WeightSumsReader::read(int layer, BlockMatrix matrix, std::span<float> sums) const {
  KVQ_ASSERT(static_cast<std::int64_t>(sums.size()) == shape_.elements(matrix));
  get(sums.data(), static_cast<std::int64_t>(sums.size_bytes()), offset_of(shape_, sequences_, layer, matrix));
}

}  // namespace kvq
