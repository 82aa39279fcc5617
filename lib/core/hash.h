#pragma once
// SHA-256 (OpenSSL): identity of models, texts and artifacts.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace kvq {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text);
  /// Lower-case hex, 64 characters; may be called once.
  std::string finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string sha256_of(std::string_view text);

/// Hash of a file's content. Large files are hashed once: the result is kept in the user's cache folder
/// ($XDG_CACHE_HOME or ~/.cache, `kvq/hashes`) under size, mtime and inode. Throws Input when it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace kvq
