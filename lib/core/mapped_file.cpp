#include <kvq/core/mapped_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
  if (fd < 0) fail(ErrorKind::Input, fmt::format("{}: {}", path.string(), std::strerror(errno)));
  struct stat status {};
  const bool ok = ::fstat(fd, &status) == 0;
  const bool regular = ok && S_ISREG(status.st_mode);
  if (regular && status.st_size > 0) {
    size_ = static_cast<std::size_t>(status.st_size);
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      ::close(fd);
      fail(ErrorKind::Io, fmt::format("{}: cannot be mapped: {}", path.string(), std::strerror(error)));
    }
    data_ = static_cast<const std::byte*>(address);
  }
  ::close(fd);
  if (!regular) {
    const bool folder = ok && S_ISDIR(status.st_mode);
    fail(ErrorKind::Input, fmt::format("{}: {}; a regular file is needed", path.string(),
                                       folder ? "is a folder" : "is not a regular file"));
  }
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(std::span<const std::byte> part) const {
  constexpr std::uintptr_t kPage = 4096;
  const auto begin = (reinterpret_cast<std::uintptr_t>(part.data()) + kPage - 1) & ~(kPage - 1);
  const auto end = reinterpret_cast<std::uintptr_t>(part.data() + part.size()) & ~(kPage - 1);
  if (end > begin) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace kvq
