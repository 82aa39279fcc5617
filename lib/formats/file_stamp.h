#pragma once
// Notices that a mapped file was changed in place: its bytes would silently be others, or, cut short, end the process.

#include <cstdint>
#include <filesystem>

namespace kvq {

class FileStamp {
 public:
  explicit FileStamp(const std::filesystem::path& path);
  /// Throws Io when the same file now has another size or modification time. A file that was deleted or replaced by
  /// rename is no change: the mapping still shows the old content.
  void require_unchanged() const;

 private:
  std::filesystem::path path_;
  std::uint64_t device_ = 0, inode_ = 0;
  std::int64_t size_ = 0, seconds_ = 0, nanoseconds_ = 0;
};

}  // namespace kvq
