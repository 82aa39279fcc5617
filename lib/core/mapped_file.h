#pragma once
// A file as read-only memory. Move-only; the bytes stay valid while the object lives.

#include <cstddef>
#include <filesystem>
#include <span>

namespace kvq {

class MappedFile {
 public:
  /// Throws Input when the path is missing, a folder, or unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }

  /// Tells the kernel that a part will not be read again soon, so that streamed weights do not stay resident.
  void release(std::span<const std::byte> part) const;

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvq
