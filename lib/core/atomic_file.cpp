#include <kvq/core/atomic_file.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace fs = std::filesystem;

namespace {

void flush_to_disk(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(ErrorKind::Io, fmt::format("{}: {}", path.string(), std::strerror(errno)));
  const bool ok = ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  if (!ok) fail(ErrorKind::Io, fmt::format("{}: cannot be flushed: {}", path.string(), std::strerror(error)));
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

}  // namespace

AtomicFile::AtomicFile(fs::path target, bool force) : target_(std::move(target)), force_(force) {
  const fs::path folder = folder_of(target_);
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    fail(ErrorKind::Usage,
         fmt::format("output '{}': {}'{}' {}", target_.string(), fs::exists(folder, error) ? "" : "folder ",
                     folder.string(), fs::exists(folder, error) ? "is no folder" : "does not exist"));
  }
  if (fs::is_directory(target_, error)) {
    fail(ErrorKind::Usage, fmt::format("output '{}' is a folder; a file name is needed", target_.string()));
  }
  // A pipe or a device would be replaced by a file of its name: /dev/null for everybody.
  if (const fs::file_status status = fs::status(target_, error); fs::exists(status) && !fs::is_regular_file(status)) {
    fail(ErrorKind::Usage,
         fmt::format("output '{}' is not a regular file (a pipe or a device?); another name is needed",
                     target_.string()));
  }
  if (!force && fs::exists(fs::symlink_status(target_, error))) {
    fail(ErrorKind::Usage, fmt::format("output '{}' exists; pass --force to replace it", target_.string()));
  }
  temporary_ = folder / fmt::format(".{}.{}.part", target_.filename().string(), ::getpid());
  // Opening the file says more than access(): quotas, read-only mounts and root on a read-only file system included.
  const int fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    fail(ErrorKind::Usage, fmt::format("output '{}': cannot write into '{}': {}", target_.string(), folder.string(),
                                       std::strerror(errno)));
  }
  ::close(fd);
  ::unlink(temporary_.c_str());
}

AtomicFile::~AtomicFile() {
  if (!committed_) ::unlink(temporary_.c_str());
}

void AtomicFile::commit() {
  flush_to_disk(temporary_);
  // Without --force a file that appeared meanwhile is not replaced: link() fails where rename() would overwrite.
  if (!force_ && ::link(temporary_.c_str(), target_.c_str()) == 0) {
    ::unlink(temporary_.c_str());
  } else if (!force_ && errno == EEXIST) {
    fail(ErrorKind::Io, fmt::format("output '{}' was created by someone else meanwhile; pass --force to replace it",
                                    target_.string()));
  } else if (::rename(temporary_.c_str(), target_.c_str()) != 0) {
    fail(ErrorKind::Io,
         fmt::format("{}: cannot be renamed to its final name: {}", target_.string(), std::strerror(errno)));
  }
  committed_ = true;
  flush_to_disk(folder_of(target_));
}

void write_file_atomically(const fs::path& target, std::string_view content, bool force) {
  AtomicFile file(target, force);
  std::ofstream stream(file.temporary(), std::ios::binary);
  stream.write(content.data(), static_cast<std::streamsize>(content.size()));
  stream.close();
  if (!stream) fail(ErrorKind::Io, fmt::format("{}: write error: {}", target.string(), std::strerror(errno)));
  file.commit();
}

}  // namespace kvq
