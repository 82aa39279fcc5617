#include <kvq/calib/input_watch.h>

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace fs = std::filesystem;

InputWatch::Entry InputWatch::look_at(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0)
    fail(ErrorKind::Input, fmt::format("{}: {}", path.string(), std::strerror(errno)));
  return {path,
          static_cast<std::uint64_t>(status.st_dev),
          static_cast<std::uint64_t>(status.st_ino),
          static_cast<std::uint64_t>(status.st_size),
          status.st_mtim.tv_sec,
          status.st_mtim.tv_nsec};
}

InputWatch::InputWatch(const std::vector<fs::path>& paths) {
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      entries_.push_back(look_at(path));
      continue;
    }
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    for (const fs::path& file : files) entries_.push_back(look_at(file));
  }
}

void InputWatch::check() const {
  for (const Entry& before : entries_) {
    struct stat status {};
    if (::stat(before.path.c_str(), &status) != 0) {
      fail(ErrorKind::Io, fmt::format("{}: disappeared during the run", before.path.string()));
    }
    const Entry now = look_at(before.path);
    if (now.device == before.device && now.inode == before.inode && now.size == before.size &&
        now.seconds == before.seconds && now.nanoseconds == before.nanoseconds) {
      continue;
    }
    fail(ErrorKind::Io, fmt::format("{}: changed during the run ({} bytes at the start, {} now); start again",
                                    before.path.string(), before.size, now.size));
  }
}

}  // namespace kvq
