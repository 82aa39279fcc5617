#include <kvq/formats/file_stamp.h>

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

FileStamp::FileStamp(const std::filesystem::path& path) : path_(path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    fail(ErrorKind::Input, fmt::format("{}: {}", path.string(), std::strerror(errno)));
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
  size_ = status.st_size;
  seconds_ = status.st_mtim.tv_sec;
  nanoseconds_ = status.st_mtim.tv_nsec;
}

void FileStamp::require_unchanged() const {
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0) return;
  if (status.st_dev != device_ || status.st_ino != inode_) return;
  if (status.st_size != size_ || status.st_mtim.tv_sec != seconds_ || status.st_mtim.tv_nsec != nanoseconds_) {
    fail(ErrorKind::Io,
         fmt::format("{}: changed while it was in use ({}); start again with a file that nothing writes to",
                     path_.string(),
                     status.st_size != size_ ? fmt::format("had {} bytes, has {}", size_, status.st_size)
                                             : "of the same size, but written to"));
  }
}

}  // namespace kvq
