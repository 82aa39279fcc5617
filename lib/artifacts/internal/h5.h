#pragma once
// The part of HDF5 that artifacts use, as values that clean up after themselves. Attributes hold scalars and strings
// only; arrays are datasets. Everything in a file is little-endian, and no object carries a time stamp.
//
// Errors: Io when writing fails; Input when a file cannot be opened; Format, naming file and object, for what is
// missing, misshapen, mistyped or damaged. HDF5's own error stack never reaches the terminal; its innermost message is
// quoted.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hdf5.h>

#include <kvq/artifacts/internal/h5_disk.h>

namespace kvq::h5 {

/// An HDF5 identifier; closed by the last owner.
class Id {
 public:
  Id() = default;
  Id(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  ~Id();
  Id(Id&& other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Id& operator=(Id&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  hid_t get() const { return id_; }

 private:
  hid_t id_ = -1;
  herr_t (*close_)(hid_t) = nullptr;
};

enum class Type { F16, F32, F64, I32, U8, U16, U64 };
const char* type_name(Type type);

/// Bits of an IEEE half, so that the type of a span says what is stored.
struct Half {
  std::uint16_t bits;
};

using Shape = std::vector<std::uint64_t>;
inline constexpr std::uint64_t kAny = ~std::uint64_t{0};  ///< in a wanted shape: any extent from 1
inline constexpr std::uint64_t kAnyOrNone = kAny - 1;     ///< the same from 0
std::string to_string(const Shape& shape);                ///< "[2, 64]", kAny as "n"

/// Halves that are kept as bits.
inline std::span<const Half> as_halves(std::span<const std::uint16_t> values) {
  static_assert(sizeof(Half) == sizeof(std::uint16_t));
  return {reinterpret_cast<const Half*>(values.data()), values.size()};
}

/// How a dataset of halves is cut along its first axis.
struct Chunking {
  std::uint64_t rows = 0;
  bool deflate = false;  ///< shuffle + deflate level 1, HDF5's standard filters
  int threads = 1;
};

class Group {
 public:
  std::string path_of(const std::string& name) const { return path_ == "/" ? "/" + name : path_ + "/" + name; }
  const std::string& file() const { return disk_->name(); }

  // Writing
  Group create_group(const std::string& name) const;
  void set(const std::string& name, const std::string& text) const;
  void set(const std::string& name, std::int64_t number) const;
  void set(const std::string& name, double number) const;
  void set_on(const std::string& dataset, const std::string& name, double number) const;  ///< stored as f32
  void write(const std::string& name, const Shape& shape, std::span<const float> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const double> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const std::int32_t> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const std::uint64_t> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const std::uint8_t> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const std::uint16_t> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const Half> data) const;
  void write(const std::string& name, const Shape& shape, std::span<const Half> data, const Chunking& chunking) const;
  void write_strings(const std::string& name, const std::vector<std::string>& texts) const;

  // Reading
  bool has_attribute(const std::string& name) const;
  bool has(const std::string& name) const;
  Group open_group(const std::string& name) const;
  std::string text(const std::string& name) const;
  std::int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  double number_on(const std::string& dataset, const std::string& name) const;
  /// Throws Format unless the dataset is there with this type and shape, wholly stored. Returns its shape.
  Shape require(const std::string& name, Type type, const Shape& wanted) const;
  std::vector<float> read_floats(const std::string& name, const Shape& wanted) const;
  std::vector<double> read_doubles(const std::string& name, const Shape& wanted) const;
  std::vector<std::int32_t> read_ints(const std::string& name, const Shape& wanted) const;
  std::vector<std::uint64_t> read_words(const std::string& name, const Shape& wanted) const;
  std::vector<std::uint16_t> read_halves(const std::string& name, const Shape& wanted) const;
  std::vector<std::uint8_t> read_bytes(const std::string& name, const Shape& wanted) const;
  std::vector<std::uint16_t> read_shorts(const std::string& name, const Shape& wanted) const;
  std::vector<std::string> read_strings(const std::string& name, std::uint64_t count) const;

  /// Throws Format: "FILE: 'PATH' problem".
  [[noreturn]] void damaged(const std::string& name, const std::string& problem) const;

 private:
  friend class File;
  Group(Id id, std::string path, Disk* disk) : id_(std::move(id)), path_(std::move(path)), disk_(disk) {}
  Id open_dataset(const std::string& name) const;
  Id create_dataset(const std::string& name, Type type, const Shape& shape, hid_t creation) const;
  void write_any(const std::string& name, Type type, const Shape& shape, const void* data, std::size_t count) const;
  template <class T>
  std::vector<T> read_any(const std::string& name, Type type, const Shape& wanted) const;

  Id id_;
  std::string path_;
  Disk* disk_;
};

class File {
 public:
  /// `name` is what messages call the file (`path` is a temporary one).
  static File create(const std::filesystem::path& path, const std::string& name);
  static File open(const std::filesystem::path& path);
  Group root() const;
  /// Writes everything out. Every Group must be gone. Throws Io.
  void close();

 private:
  File(std::unique_ptr<Disk> disk, Id id) : disk_(std::move(disk)), id_(std::move(id)) {}
  std::unique_ptr<Disk> disk_;  // outlives the handle
  Id id_;
};

}  // namespace kvq::h5
