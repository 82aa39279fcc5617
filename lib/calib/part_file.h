#pragma once
// A file of a journal, read and written at places: whole under its name or not there.

#include <cstdint>
#include <filesystem>

namespace kvq {

/// Written under a temporary name. Throws Io, naming the file.
class PartWriter {
 public:
  explicit PartWriter(std::filesystem::path target);
  ~PartWriter();
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  void put(const void* data, std::int64_t bytes, std::int64_t offset);
  /// Lets the disk begin with what was put there, so that the flush at the end has little left to do.
  void start_flush(std::int64_t bytes, std::int64_t offset);
  /// Flushes file and folder, and gives the file its name.
  void commit();

 private:
  std::filesystem::path target_, temporary_;
  int descriptor_ = -1;
};

class PartReader {
 public:
  /// Throws Io.
  explicit PartReader(std::filesystem::path path);
  ~PartReader();
  PartReader(PartReader&& other) noexcept;
  PartReader& operator=(PartReader&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const;
  /// Thread-safe. Throws Io, also when the file ends before.
  void get(void* data, std::int64_t bytes, std::int64_t offset) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace kvq
