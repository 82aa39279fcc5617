#pragma once
// A file of a journal, read and written at places: whole under its name or not there.

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvq {

/// Checksums of a file's pieces and of its header, which stand behind it.
class PieceSums {
 public:
  explicit PieceSums(std::int64_t pieces) : sums_(static_cast<std::size_t>(pieces) + 1) {}
  std::int64_t bytes() const { return static_cast<std::int64_t>(sums_.size() * sizeof(std::uint64_t)); }

  void set(std::int64_t piece, std::uint64_t sum) { sums_[static_cast<std::size_t>(piece)] = sum; }
  bool agrees(std::int64_t piece, std::uint64_t sum) const { return sums_[static_cast<std::size_t>(piece)] == sum; }
  /// The last sum is of the header and of the other sums.
  void seal(const void* header, std::int64_t bytes) { sums_.back() = sealed(header, bytes); }
  bool is_sealed(const void* header, std::int64_t bytes) const { return sums_.back() == sealed(header, bytes); }

  std::uint64_t* data() { return sums_.data(); }

 private:
  std::uint64_t sealed(const void* header, std::int64_t bytes) const;

  std::vector<std::uint64_t> sums_;
};

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
