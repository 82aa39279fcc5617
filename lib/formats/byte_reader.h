#pragma once
// A cursor over the bytes of a little-endian file. Every read is checked against what is left, before anything is
// allocated.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

class ByteReader {
 public:
  /// `file` begins every message; `bytes` is not owned.
  ByteReader(std::string file, std::span<const std::byte> bytes) : file_(std::move(file)), bytes_(bytes) {}

  std::uint64_t offset() const { return offset_; }
  std::uint64_t remaining() const { return bytes_.size() - offset_; }
  const std::string& file() const { return file_; }

  /// `what` (a `const char*` or a callable that returns a string, asked only on failure) names the thing that is being
  /// read.
  template <typename T, typename What>
  T read(const What& what) {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  /// A string with a 64-bit length before it, as a view of the file.
  template <typename What>
  std::string_view read_string(std::uint64_t longest, const What& what) {
    const auto length = read<std::uint64_t>(what);
    if (length > longest) {
      damaged(fmt::format("the length of {} is {}; at most {} is allowed", text_of(what), length, longest));
    }
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<std::size_t>(length)};
  }

  /// Refuses a count that the rest of the file cannot hold.
  template <typename What>
  void require_room(std::uint64_t count, std::uint64_t bytes_each, const What& what) const {
    if (count > remaining() / bytes_each) {
      damaged(fmt::format("{}: {} entries of at least {} bytes, but only {} bytes are left", text_of(what), count,
                          bytes_each, remaining()));
    }
  }

  template <typename What>
  const std::byte* take(std::uint64_t count, const What& what) {
    if (count > remaining()) {
      damaged(fmt::format("ends within {}: {} bytes needed, {} left", text_of(what), count, remaining()));
    }
    const std::byte* at = bytes_.data() + offset_;
    offset_ += count;
    return at;
  }

  [[noreturn]] void damaged(const std::string& reason) const {
    fail(ErrorKind::Format, fmt::format("{}: damaged at byte {}: {}", file_, offset_, reason));
  }

 private:
  static std::string text_of(const char* what) { return what; }
  template <typename What>
  static std::string text_of(const What& what) {
    return what();
  }

  std::string file_;
  std::span<const std::byte> bytes_;
  std::uint64_t offset_ = 0;
};

}  // namespace kvq
