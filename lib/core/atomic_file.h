#pragma once
// Output that is there whole or not at all: written under a temporary name in the same folder, flushed, renamed.

#include <filesystem>
#include <string_view>

namespace kvq {

class AtomicFile {
 public:
  /// Checks, before any work is done, that the output can be made. Throws Usage when `target` exists and not `force`
  /// ("pass --force"), is a folder, a pipe or a device, or its folder is missing or not writable.
  AtomicFile(std::filesystem::path target, bool force);
  /// Removes the temporary file unless committed.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Where to write. The file does not exist yet.
  const std::filesystem::path& temporary() const { return temporary_; }
  /// fsync, rename, fsync of the folder. Throws Io.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  bool force_;
  bool committed_ = false;
};

/// Small text files (reports, stamps) in one call. Throws as AtomicFile, and Io.
void write_file_atomically(const std::filesystem::path& target, std::string_view content, bool force);

}  // namespace kvq
