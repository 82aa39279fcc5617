#include <kvq/artifacts/internal/h5.h>

#include <array>
#include <cmath>
#include <cstring>
#include <new>

#include <fmt/format.h>

#include <kvq/artifacts/internal/h5_error.h>
#include <kvq/core/error.h>

namespace kvq::h5 {

std::string last_error() {
  std::string message;
  auto innermost = [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
    if (depth == 0 && error->desc) *static_cast<std::string*>(out) = error->desc;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, innermost, &message);
  return message;
}

namespace {

/// Throws Memory. HDF5 needs less than this to look at a sound artifact.
void require_memory(const std::string& problem) {
  constexpr std::size_t kPlenty = std::size_t{16} << 20;
  void* probe = ::operator new(kPlenty, std::nothrow);
  ::operator delete(probe);
  if (!probe) fail(ErrorKind::Memory, problem.empty() ? "out of memory" : "out of memory (" + problem + ")");
}

}  // namespace

void check_memory() {
  bool about_memory = false;
  auto look = [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
    if (error->maj_num == H5E_RESOURCE) *static_cast<bool*>(out) = true;
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, look, &about_memory);
  if (about_memory) require_memory(last_error());
}

Id::~Id() {
  std::string ignored;
  if (id_ >= 0) attempt_without_check([&] { return close_(id_); }, ignored);
}

void Group::damaged(const std::string& name, const std::string& problem) const {
  fail(ErrorKind::Format, fmt::format("{}: '{}' {}", file(), path_of(name), problem));
}

namespace {

constexpr std::size_t kLongestText = 60 << 10;  // HDF5 refuses attributes above 64 KiB

Id text_type(std::size_t length) {
  Id type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type.get(), std::max<std::size_t>(1, length));
  H5Tset_strpad(type.get(), H5T_STR_NULLPAD);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

void set_attribute(const Group& group, hid_t object, const std::string& name, hid_t file_type, hid_t memory_type,
                   const void* value) {
  std::string message;
  const Id space(H5Screate(H5S_SCALAR), H5Sclose);
  const Id attribute(
      attempt([&] { return H5Acreate2(object, name.c_str(), file_type, space.get(), H5P_DEFAULT, H5P_DEFAULT); },
              message),
      H5Aclose);
  if (attribute.get() < 0 || attempt([&] { return H5Awrite(attribute.get(), memory_type, value); }, message) < 0) {
    fail(ErrorKind::Io, fmt::format("{}: attribute '{}' cannot be written: {}", group.file(), name, message));
  }
}

Id open_attribute(const Group& group, hid_t object, const std::string& name, H5T_class_t wanted,
                  const char* wanted_name) {
  if (attempt([&] { return H5Aexists(object, name.c_str()); }) <= 0) group.damaged(name, "attribute is missing");
  std::string message;
  Id attribute(attempt([&] { return H5Aopen(object, name.c_str(), H5P_DEFAULT); }, message), H5Aclose);
  if (attribute.get() < 0) group.damaged(name, "attribute cannot be opened: " + message);
  const Id space(attempt([&] { return H5Aget_space(attribute.get()); }), H5Sclose);
  const Id type(attempt([&] { return H5Aget_type(attribute.get()); }), H5Tclose);
  if (space.get() < 0 || type.get() < 0) group.damaged(name, "attribute cannot be read");
  if (H5Sget_simple_extent_npoints(space.get()) != 1)
    group.damaged(name, "attribute is an array, a single value is needed");
  if (H5Tget_class(type.get()) != wanted)
    group.damaged(name, fmt::format("attribute has another type, {} is needed", wanted_name));
  return attribute;
}

double read_number(const Group& group, hid_t object, const std::string& name) {
  const Id attribute = open_attribute(group, object, name, H5T_FLOAT, "a float");
  double value = 0;
  if (attempt([&] { return H5Aread(attribute.get(), H5T_NATIVE_DOUBLE, &value); }) < 0)
    group.damaged(name, "attribute cannot be read");
  if (!std::isfinite(value)) group.damaged(name, fmt::format("attribute is {}, a finite number is needed", value));
  return value;
}

}  // namespace

Group Group::create_group(const std::string& name) const {
  std::string message;
  const Id creation(H5Pcreate(H5P_GROUP_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);
  Id id(attempt([&] { return H5Gcreate2(id_.get(), name.c_str(), H5P_DEFAULT, creation.get(), H5P_DEFAULT); }, message),
        H5Gclose);
  if (id.get() < 0)
    fail(ErrorKind::Io, fmt::format("{}: group '{}' cannot be written: {}", file(), path_of(name), message));
  return Group(std::move(id), path_of(name), disk_);
}

void Group::set(const std::string& name, const std::string& text) const {
  if (text.size() > kLongestText) {
    fail(ErrorKind::Usage,
         fmt::format("{}: attribute '{}' has {} bytes, at most {} fit", file(), name, text.size(), kLongestText));
  }
  if (text.find('\0') != std::string::npos)
    fail(ErrorKind::Usage, fmt::format("{}: attribute '{}' holds a NUL", file(), name));
  const Id type = text_type(text.size());
  set_attribute(*this, id_.get(), name, type.get(), type.get(), text.c_str());
}
void Group::set(const std::string& name, std::int64_t number) const {
  set_attribute(*this, id_.get(), name, H5T_STD_I64LE, H5T_NATIVE_INT64, &number);
}
void Group::set(const std::string& name, double number) const {
  set_attribute(*this, id_.get(), name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &number);
}
void Group::set_on(const std::string& dataset, const std::string& name, double number) const {
  const Id object = open_dataset(dataset);
  set_attribute(*this, object.get(), name, H5T_IEEE_F32LE, H5T_NATIVE_DOUBLE, &number);
}

bool Group::has_attribute(const std::string& name) const {
  return attempt([&] { return H5Aexists(id_.get(), name.c_str()); }) > 0;
}

bool Group::has(const std::string& name) const {
  if (attempt([&] { return H5Lexists(id_.get(), name.c_str(), H5P_DEFAULT); }) <= 0) return false;
  H5L_info_t info{};
  if (attempt([&] { return H5Lget_info(id_.get(), name.c_str(), &info, H5P_DEFAULT); }) < 0)
    damaged(name, "cannot be looked up");
  // A link into another file would make the artifact depend on what is around it.
  if (info.type != H5L_TYPE_HARD) damaged(name, "is a soft or external link, which artifacts never hold");
  return true;
}

Group Group::open_group(const std::string& name) const {
  if (!has(name)) damaged(name, "is missing");
  std::string message;
  Id id(attempt([&] { return H5Gopen2(id_.get(), name.c_str(), H5P_DEFAULT); }, message), H5Gclose);
  if (id.get() < 0) damaged(name, "cannot be opened as a group: " + message);
  return Group(std::move(id), path_of(name), disk_);
}

std::string Group::text(const std::string& name) const {
  const Id attribute = open_attribute(*this, id_.get(), name, H5T_STRING, "a string");
  const Id type(H5Aget_type(attribute.get()), H5Tclose);
  std::string result;
  if (H5Tis_variable_str(type.get()) > 0) {  // h5py's way
    char* buffer = nullptr;
    if (attempt([&] { return H5Aread(attribute.get(), type.get(), &buffer); }) < 0)
      damaged(name, "attribute cannot be read");
    if (buffer) result = buffer;
    H5free_memory(buffer);
    return result;
  }
  result.resize(H5Tget_size(type.get()));
  if (result.size() > kLongestText + 4096) damaged(name, "attribute is too long");
  if (attempt([&] { return H5Aread(attribute.get(), type.get(), result.data()); }) < 0)
    damaged(name, "attribute cannot be read");
  result.resize(std::strlen(result.c_str()));
  return result;
}

std::int64_t Group::integer(const std::string& name) const {
  const Id attribute = open_attribute(*this, id_.get(), name, H5T_INTEGER, "an integer");
  std::int64_t value = 0;
  if (attempt([&] { return H5Aread(attribute.get(), H5T_NATIVE_INT64, &value); }) < 0)
    damaged(name, "attribute cannot be read");
  return value;
}

double Group::number(const std::string& name) const { return read_number(*this, id_.get(), name); }

double Group::number_on(const std::string& dataset, const std::string& name) const {
  const Id object = open_dataset(dataset);
  return read_number(*this, object.get(), name);
}

namespace {

/// After a damaged object HDF5 1.10 keeps references to it, and its clean-up at the end of the process gets stuck and
/// says so on stderr. Our files are always closed by hand, so the clean-up is switched off; that is possible only
/// before the library's first use. A program that uses HDF5 itself, and lets it start first, keeps its clean-up.
void without_exit_handler() {
  static const herr_t once = H5dont_atexit();
  static_cast<void>(once);
}

/// Where memory is short HDF5 crashes as it opens a file.
void start() {
  without_exit_handler();
  require_memory("");
}

}  // namespace

File File::create(const std::filesystem::path& path, const std::string& name) {
  start();
  auto disk = std::make_unique<Disk>(path, name, Disk::Mode::Create);
  const Id access(disk->access_properties(), H5Pclose);
  const Id creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_obj_track_times(creation.get(), false);  // the root group is an object too
  std::string message;
  Id id(attempt([&] { return H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()); }, message),
        H5Fclose);
  if (id.get() < 0) fail(ErrorKind::Io, fmt::format("{}: cannot be created: {}", name, message));
  return File(std::move(disk), std::move(id));
}

File File::open(const std::filesystem::path& path) {
  start();
  auto disk = std::make_unique<Disk>(path, path.string(), Disk::Mode::Read);
  // HDF5 would look for a signature behind a user block as well; artifacts have none.
  constexpr std::array<unsigned char, 8> kSignature = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
  std::array<unsigned char, 8> start{};
  const ssize_t got = ::pread(disk->descriptor(), start.data(), start.size(), 0);
  if (got < 0) fail(ErrorKind::Io, fmt::format("{}: read error: {}", disk->name(), std::strerror(errno)));
  if (got == 0) fail(ErrorKind::Format, fmt::format("{}: is empty, an HDF5 file is needed", disk->name()));
  if (start != kSignature) fail(ErrorKind::Format, fmt::format("{}: is not an HDF5 file", disk->name()));
  const Id access(disk->access_properties(), H5Pclose);
  std::string message;
  Id id(attempt([&] { return H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()); }, message), H5Fclose);
  if (id.get() < 0)
    fail(ErrorKind::Format, fmt::format("{}: damaged or truncated HDF5 file ({})", disk->name(), message));
  return File(std::move(disk), std::move(id));
}

Group File::root() const {
  std::string message;
  Id id(attempt([&] { return H5Gopen2(id_.get(), "/", H5P_DEFAULT); }, message), H5Gclose);
  if (id.get() < 0) fail(ErrorKind::Format, fmt::format("{}: damaged HDF5 file ({})", disk_->name(), message));
  return Group(std::move(id), "/", disk_.get());
}

void File::close() {
  std::string message;
  const hid_t id = id_.get();
  const bool closed = attempt([&] { return H5Fflush(id, H5F_SCOPE_GLOBAL); }, message) >= 0;
  id_ = Id();
  disk_->check();
  if (!closed) fail(ErrorKind::Io, fmt::format("{}: cannot be written: {}", disk_->name(), message));
}

}  // namespace kvq::h5
