#pragma once
// Notices that a file changed while it was being used: weights are memory-mapped, so a file that is overwritten during
// a run would change the numbers half-way through.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvq {

class InputWatch {
 public:
  /// Remembers size, modification time and identity of each file; of a folder, those of the files in it.
  /// Make it before the files are opened. Throws Input when one is missing.
  explicit InputWatch(const std::vector<std::filesystem::path>& paths);
  /// Throws Io naming the first file that is not what it was.
  void check() const;

 private:
  struct Entry {
    std::filesystem::path path;
    std::uint64_t device, inode, size;
    std::int64_t seconds, nanoseconds;
  };
  static Entry look_at(const std::filesystem::path& path);
  std::vector<Entry> entries_;
};

}  // namespace kvq
