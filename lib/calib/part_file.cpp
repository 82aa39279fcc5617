#include <kvq/calib/part_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/checksum.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

[[noreturn]] void io_error(const std::filesystem::path& path, const char* what) {
  fail(ErrorKind::Io, fmt::format("{}: {}: {}", path.string(), what, std::strerror(errno)));
}

}  // namespace

std::uint64_t PieceSums::sealed(const void* header, std::int64_t bytes) const {
  const std::uint64_t both[] = {checksum_of(header, bytes),
                                checksum_of(sums_.data(), this->bytes() - std::int64_t{sizeof(std::uint64_t)})};
  return checksum_of(both, sizeof both);
}

PartWriter::PartWriter(std::filesystem::path target)
    : target_(std::move(target)), temporary_(target_.string() + ".part") {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) io_error(temporary_, "cannot be created");
}

PartWriter::~PartWriter() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void PartWriter::put(const void* data, std::int64_t bytes, std::int64_t offset) {
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

void PartWriter::start_flush(std::int64_t bytes, std::int64_t offset) {
  ::sync_file_range(descriptor_, offset, bytes, SYNC_FILE_RANGE_WRITE);
}

void PartWriter::commit() {
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

PartReader::PartReader(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) io_error(path_, "cannot be opened");
}

PartReader::~PartReader() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

PartReader::PartReader(PartReader&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

std::int64_t PartReader::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) io_error(path_, "cannot be read");
  return status.st_size;
}

void PartReader::get(void* data, std::int64_t bytes, std::int64_t offset) const {
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

}  // namespace kvq
