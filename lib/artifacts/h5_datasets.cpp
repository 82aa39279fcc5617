// Arrays: writing, checking, reading.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <kvq/artifacts/internal/h5.h>
#include <kvq/artifacts/internal/h5_deflate.h>
#include <kvq/artifacts/internal/h5_error.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq::h5 {

const char* type_name(Type type) {
  switch (type) {
    case Type::F16:
      return "float16";
    case Type::F32:
      return "float32";
    case Type::F64:
      return "float64";
    case Type::I32:
      return "int32";
    case Type::U8:
      return "uint8";
    case Type::U16:
      return "uint16";
    case Type::U64:
      return "uint64";
  }
  return "?";
}

std::string to_string(const Shape& shape) {
  std::string text;
  for (std::uint64_t extent : shape)
    text += (text.empty() ? "" : ", ") + (extent >= kAnyOrNone ? "n" : fmt::format("{}", extent));
  return "[" + text + "]";
}

namespace {

Id file_type(Type type) {
  switch (type) {
    case Type::F16: {  // HDF5 1.10 has no name for it; these are the fields that h5py calls float16
      Id half(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
      H5Tset_fields(half.get(), 15, 10, 5, 0, 10);
      H5Tset_size(half.get(), 2);
      H5Tset_ebias(half.get(), 15);
      return half;
    }
    case Type::F32:
      return Id(H5Tcopy(H5T_IEEE_F32LE), H5Tclose);
    case Type::F64:
      return Id(H5Tcopy(H5T_IEEE_F64LE), H5Tclose);
    case Type::I32:
      return Id(H5Tcopy(H5T_STD_I32LE), H5Tclose);
    case Type::U8:
      return Id(H5Tcopy(H5T_STD_U8LE), H5Tclose);
    case Type::U16:
      return Id(H5Tcopy(H5T_STD_U16LE), H5Tclose);
    case Type::U64:
      return Id(H5Tcopy(H5T_STD_U64LE), H5Tclose);
  }
  KVQ_ASSERT(false);
  return {};
}

std::string describe(hid_t type) {
  const std::size_t bits = 8 * H5Tget_size(type);
  switch (H5Tget_class(type)) {
    case H5T_FLOAT:
      return fmt::format("float{}{}", bits, H5Tget_order(type) == H5T_ORDER_BE ? " big-endian" : "");
    case H5T_INTEGER:
      return fmt::format("{}int{}{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits,
                         H5Tget_order(type) == H5T_ORDER_BE ? " big-endian" : "");
    case H5T_STRING:
      return "a string";
    default:
      return "another type";
  }
}

/// Halves are moved as they are; the rest is asked for in the machine's own byte order.
hid_t memory_type(Type type, const Id& half) {
  switch (type) {
    case Type::F16:
      return half.get();
    case Type::F32:
      return H5T_NATIVE_FLOAT;
    case Type::F64:
      return H5T_NATIVE_DOUBLE;
    case Type::I32:
      return H5T_NATIVE_INT32;
    case Type::U8:
      return H5T_NATIVE_UINT8;
    case Type::U16:
      return H5T_NATIVE_UINT16;
    case Type::U64:
      return H5T_NATIVE_UINT64;
  }
  return -1;
}

std::uint64_t elements(const Shape& shape) {
  std::uint64_t count = 1;
  for (std::uint64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count))
      fail(ErrorKind::Format, fmt::format("shape {} overflows", to_string(shape)));
  }
  return count;
}

Id dataset_creation() {
  Id creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);  // everything is written once
  return creation;
}

Shape shape_of(hid_t dataset) {
  const Id space(H5Dget_space(dataset), H5Sclose);
  const int rank = space.get() < 0 ? -1 : H5Sget_simple_extent_ndims(space.get());
  if (rank < 0) return {};
  Shape shape(static_cast<std::size_t>(rank));
  std::vector<hsize_t> extents(shape.size());
  H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  std::copy(extents.begin(), extents.end(), shape.begin());
  return shape;
}

bool matches(const Shape& found, const Shape& wanted) {
  if (found.size() != wanted.size()) return false;
  for (std::size_t axis = 0; axis < found.size(); ++axis) {
    if (wanted[axis] == kAnyOrNone) continue;
    if (wanted[axis] == kAny ? found[axis] == 0 : found[axis] != wanted[axis]) return false;
  }
  return true;
}

}  // namespace

Id Group::open_dataset(const std::string& name) const {
  if (!has(name)) damaged(name, "is missing");
  std::string message;
  Id dataset(attempt([&] { return H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT); }, message), H5Dclose);
  if (dataset.get() < 0) damaged(name, "cannot be opened as a dataset: " + message);
  return dataset;
}

Id Group::create_dataset(const std::string& name, Type type, const Shape& shape, hid_t creation) const {
  const std::vector<hsize_t> extents(shape.begin(), shape.end());
  const Id space(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr), H5Sclose);
  const Id stored = file_type(type);
  std::string message;
  Id dataset(attempt(
                 [&] {
                   return H5Dcreate2(id_.get(), name.c_str(), stored.get(), space.get(), H5P_DEFAULT, creation,
                                     H5P_DEFAULT);
                 },
                 message),
             H5Dclose);
  if (dataset.get() < 0)
    fail(ErrorKind::Io, fmt::format("{}: '{}' cannot be created: {}", file(), path_of(name), message));
  return dataset;
}

void Group::write_any(const std::string& name, Type type, const Shape& shape, const void* data,
                      std::size_t count) const {
  KVQ_ASSERT(elements(shape) == count);
  const Id creation = dataset_creation();
  const Id dataset = create_dataset(name, type, shape, creation.get());
  const Id half = file_type(Type::F16);
  std::string message;
  if (attempt([&] { return H5Dwrite(dataset.get(), memory_type(type, half), H5S_ALL, H5S_ALL, H5P_DEFAULT, data); },
              message) < 0) {
    fail(ErrorKind::Io, fmt::format("{}: '{}' cannot be written: {}", file(), path_of(name), message));
  }
  disk_->check();
}

void Group::write(const std::string& name, const Shape& shape, std::span<const float> data) const {
  write_any(name, Type::F32, shape, data.data(), data.size());
}
void Group::write(const std::string& name, const Shape& shape, std::span<const double> data) const {
  write_any(name, Type::F64, shape, data.data(), data.size());
}
void Group::write(const std::string& name, const Shape& shape, std::span<const std::int32_t> data) const {
  write_any(name, Type::I32, shape, data.data(), data.size());
}
void Group::write(const std::string& name, const Shape& shape, std::span<const std::uint64_t> data) const {
  write_any(name, Type::U64, shape, data.data(), data.size());
}
void Group::write(const std::string& name, const Shape& shape, std::span<const std::uint8_t> data) const {
  write_any(name, Type::U8, shape, data.data(), data.size());
}
void Group::write(const std::string& name, const Shape& shape, std::span<const std::uint16_t> data) const {
  write_any(name, Type::U16, shape, data.data(), data.size());
}
void Group::write(const std::string& name, const Shape& shape, std::span<const Half> data) const {
  write_any(name, Type::F16, shape, data.data(), data.size());
}

void Group::write(const std::string& name, const Shape& shape, std::span<const Half> data,
                  const Chunking& chunking) const {
  KVQ_ASSERT(elements(shape) == data.size() && chunking.rows > 0 && chunking.rows <= shape[0]);
  const Id creation = dataset_creation();
  std::vector<hsize_t> chunk(shape.begin(), shape.end());
  chunk[0] = chunking.rows;
  H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
  if (chunking.deflate) {
    H5Pset_shuffle(creation.get());
    H5Pset_deflate(creation.get(), kDeflateLevel);
  }
  const Id dataset = create_dataset(name, Type::F16, shape, creation.get());

  const std::uint64_t row = elements(shape) / shape[0];
  const std::uint64_t chunk_elements = row * chunking.rows;
  const auto chunks = static_cast<std::int64_t>((shape[0] + chunking.rows - 1) / chunking.rows);
  const auto halves_of = [&](std::int64_t index) {
    const std::uint64_t begin = static_cast<std::uint64_t>(index) * chunk_elements;
    return data.subspan(begin, std::min<std::uint64_t>(chunk_elements, data.size() - begin));
  };
  std::vector<std::vector<std::byte>> packed(chunking.deflate ? static_cast<std::size_t>(chunks) : 0);
  parallel_for(static_cast<std::int64_t>(packed.size()), chunking.threads, [&](std::int64_t index) {
    packed[index] = shuffle_and_deflate(std::as_bytes(halves_of(index)), chunk_elements * sizeof(Half), sizeof(Half));
  });

  std::vector<Half> padded;  // the last chunk is stored whole
  for (std::int64_t index = 0; index < chunks; ++index) {
    std::span<const std::byte> bytes;
    if (chunking.deflate) {
      bytes = packed[index];
    } else {
      std::span<const Half> halves = halves_of(index);
      if (halves.size() < chunk_elements) {
        padded.assign(halves.begin(), halves.end());
        padded.resize(chunk_elements, Half{0});
        halves = padded;
      }
      bytes = std::as_bytes(halves);
    }
    std::vector<hsize_t> offset(shape.size(), 0);
    offset[0] = static_cast<hsize_t>(index) * chunking.rows;
    std::string message;
    if (attempt(
            [&] { return H5Dwrite_chunk(dataset.get(), H5P_DEFAULT, 0, offset.data(), bytes.size(), bytes.data()); },
            message) < 0) {
      fail(ErrorKind::Io, fmt::format("{}: '{}' cannot be written: {}", file(), path_of(name), message));
    }
    disk_->check();
  }
}

void Group::write_strings(const std::string& name, const std::vector<std::string>& texts) const {
  std::size_t length = 1;
  for (const std::string& text : texts) length = std::max(length, text.size());
  std::string flat(length * texts.size(), '\0');
  for (std::size_t index = 0; index < texts.size(); ++index) texts[index].copy(flat.data() + index * length, length);
  const Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), length);
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  const hsize_t count = texts.size();
  const Id space(H5Screate_simple(1, &count, nullptr), H5Sclose);
  const Id creation = dataset_creation();
  std::string message;
  const Id dataset(attempt(
                       [&] {
                         return H5Dcreate2(id_.get(), name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                           creation.get(), H5P_DEFAULT);
                       },
                       message),
                   H5Dclose);
  if (dataset.get() < 0 ||
      attempt([&] { return H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, flat.data()); },
              message) < 0) {
    fail(ErrorKind::Io, fmt::format("{}: '{}' cannot be written: {}", file(), path_of(name), message));
  }
  disk_->check();
}

Shape Group::require(const std::string& name, Type type, const Shape& wanted) const {
  const Id dataset = open_dataset(name);
  const Id found(attempt([&] { return H5Dget_type(dataset.get()); }), H5Tclose);
  const Id stored = file_type(type);
  if (found.get() < 0 || H5Tequal(found.get(), stored.get()) <= 0) {
    damaged(name, fmt::format("holds {}, {} is needed", found.get() < 0 ? "an unknown type" : describe(found.get()),
                              type_name(type)));
  }
  const Shape shape = shape_of(dataset.get());
  if (!matches(shape, wanted))
    damaged(name, fmt::format("has shape {}, {} is needed", to_string(shape), to_string(wanted)));

  // Before memory is allocated: a few bytes must not claim terabytes, and unwritten space must not pass for zeros.
  const Id creation(attempt([&] { return H5Dget_create_plist(dataset.get()); }), H5Pclose);
  const H5D_layout_t layout = creation.get() < 0 ? H5D_LAYOUT_ERROR : H5Pget_layout(creation.get());
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED && layout != H5D_COMPACT)
    damaged(name, "is stored in another file");
  if (H5Pget_external_count(creation.get()) != 0) damaged(name, "is stored in another file");
  const std::uint64_t bytes = elements(shape) * H5Tget_size(stored.get());
  const std::uint64_t on_disk = H5Dget_storage_size(dataset.get());
  constexpr std::uint64_t kBestDeflate = 1040;  // deflate never does better than 1032 to 1
  const bool filtered = layout == H5D_CHUNKED && H5Pget_nfilters(creation.get()) > 0;
  if (filtered ? on_disk < bytes / kBestDeflate || (on_disk == 0 && bytes > 0) : on_disk < bytes) {
    damaged(name, fmt::format("is not wholly stored: {} bytes for {} of data", on_disk, bytes));
  }
  return shape;
}

template <class T>
std::vector<T> Group::read_any(const std::string& name, Type type, const Shape& wanted) const {
  const std::uint64_t count = elements(require(name, type, wanted));
  const Id dataset = open_dataset(name);
  const Id half = file_type(Type::F16);
  std::vector<T> data(count);
  std::string message;
  if (attempt(
          [&] { return H5Dread(dataset.get(), memory_type(type, half), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()); },
          message) < 0) {
    damaged(name, "cannot be read: " + message);
  }
  return data;
}

std::vector<float> Group::read_floats(const std::string& name, const Shape& wanted) const {
  return read_any<float>(name, Type::F32, wanted);
}
std::vector<double> Group::read_doubles(const std::string& name, const Shape& wanted) const {
  return read_any<double>(name, Type::F64, wanted);
}
std::vector<std::int32_t> Group::read_ints(const std::string& name, const Shape& wanted) const {
  return read_any<std::int32_t>(name, Type::I32, wanted);
}
std::vector<std::uint64_t> Group::read_words(const std::string& name, const Shape& wanted) const {
  return read_any<std::uint64_t>(name, Type::U64, wanted);
}
std::vector<std::uint16_t> Group::read_halves(const std::string& name, const Shape& wanted) const {
  return read_any<std::uint16_t>(name, Type::F16, wanted);
}
std::vector<std::uint8_t> Group::read_bytes(const std::string& name, const Shape& wanted) const {
  return read_any<std::uint8_t>(name, Type::U8, wanted);
}
std::vector<std::uint16_t> Group::read_shorts(const std::string& name, const Shape& wanted) const {
  return read_any<std::uint16_t>(name, Type::U16, wanted);
}

std::vector<std::string> Group::read_strings(const std::string& name, std::uint64_t count) const {
  const Id dataset = open_dataset(name);
  const Id type(attempt([&] { return H5Dget_type(dataset.get()); }), H5Tclose);
  if (type.get() < 0 || H5Tget_class(type.get()) != H5T_STRING) damaged(name, "holds another type, strings are needed");
  const Shape shape = shape_of(dataset.get());
  if (shape != Shape{count})
    damaged(name, fmt::format("has shape {}, {} is needed", to_string(shape), to_string({count})));
  std::vector<std::string> texts(count);
  if (H5Tis_variable_str(type.get()) > 0) {
    std::vector<char*> pointers(count, nullptr);
    if (attempt([&] { return H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()); }) <
        0) {
      damaged(name, "cannot be read");
    }
    for (std::uint64_t index = 0; index < count; ++index) {
      if (pointers[index]) texts[index] = pointers[index];
      H5free_memory(pointers[index]);
    }
    return texts;
  }
  const std::size_t length = H5Tget_size(type.get());
  if (length > 4096 || H5Dget_storage_size(dataset.get()) < length * count) damaged(name, "is not wholly stored");
  std::string flat(length * count, '\0');
  if (attempt([&] { return H5Dread(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, flat.data()); }) < 0) {
    damaged(name, "cannot be read");
  }
  for (std::uint64_t index = 0; index < count; ++index) {
    texts[index] = flat.substr(index * length, length);
    texts[index].resize(std::strlen(texts[index].c_str()));
  }
  return texts;
}

}  // namespace kvq::h5
