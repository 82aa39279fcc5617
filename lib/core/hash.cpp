#include <kvq/core/hash.h>

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include <fmt/format.h>
#include <openssl/evp.h>

#include <kvq/core/error.h>

namespace kvq {

namespace fs = std::filesystem;

struct Sha256::Impl {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~Impl() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  KVQ_ASSERT(EVP_DigestInit_ex(impl_->context, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  KVQ_ASSERT(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}
void Sha256::update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }

std::string Sha256::finish() {
  std::array<unsigned char, 32> digest{};
  KVQ_ASSERT(EVP_DigestFinal_ex(impl_->context, digest.data(), nullptr) == 1);
  std::string hex;
  for (unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string sha256_of(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.finish();
}

namespace {

constexpr std::uintmax_t kCacheFrom = 16u << 20;  // smaller files hash in milliseconds

std::string hash_content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorKind::Input, fmt::format("{}: cannot be opened for reading", path.string()));
  Sha256 hash;
  std::vector<char> buffer(1 << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash.update(std::string_view(buffer.data(), static_cast<std::size_t>(file.gcount())));
  }
  if (file.bad()) fail(ErrorKind::Io, fmt::format("{}: read error", path.string()));
  return hash.finish();
}

fs::path cache_folder() {
  const char* xdg = std::getenv("XDG_CACHE_HOME");
  if (xdg && *xdg) return fs::path(xdg) / "kvq" / "hashes";
  const char* home = std::getenv("HOME");
  if (home && *home) return fs::path(home) / ".cache" / "kvq" / "hashes";
  return {};
}

}  // namespace

std::string sha256_of_file(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    fail(ErrorKind::Input, fmt::format("{}: {}", path.string(), std::strerror(errno)));
  }
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::Input, fmt::format("{}: is not a regular file", path.string()));
  const fs::path folder = cache_folder();
  if (static_cast<std::uintmax_t>(status.st_size) < kCacheFrom || folder.empty()) return hash_content(path);

  const fs::path entry = folder / fmt::format("{}-{}-{}-{}-{}", status.st_dev, status.st_ino, status.st_size,
                                              status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  std::string known;
  if (std::ifstream(entry) >> known && known.size() == 64) return known;
  const std::string digest = hash_content(path);
  // A cache that cannot be written only costs time, so failures here are nobody's concern.
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  const fs::path temporary = entry.string() + fmt::format(".{}", ::getpid());
  if (std::ofstream(temporary) << digest) fs::rename(temporary, entry, ignored);
  return digest;
}

}  // namespace kvq
