#include <kvq/artifacts/internal/h5_disk.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <kvq/core/error.h>

namespace kvq::h5 {

namespace {

/// What HDF5 copies around as the driver's settings.
struct DriverInfo {
  Disk* disk;
};

struct OpenFile {
  H5FD_t common;  // HDF5's part, must be first
  Disk* disk;
  haddr_t end_of_allocation;
};

Disk& disk_of(const H5FD_t* file) { return *reinterpret_cast<const OpenFile*>(file)->disk; }

H5FD_t* driver_open(const char*, unsigned, hid_t properties, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(properties));
  return info ? reinterpret_cast<H5FD_t*>(new OpenFile{{}, info->disk, 0}) : nullptr;
}

herr_t driver_close(H5FD_t* file) {
  delete reinterpret_cast<OpenFile*>(file);
  return 0;
}

herr_t driver_query(const H5FD_t*, unsigned long* flags) {
  // Same placement of small pieces as in HDF5's default driver.
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t driver_get_eoa(const H5FD_t* file, H5FD_mem_t) {
  return reinterpret_cast<const OpenFile*>(file)->end_of_allocation;
}
herr_t driver_set_eoa(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  reinterpret_cast<OpenFile*>(file)->end_of_allocation = address;
  return 0;
}
haddr_t driver_get_eof(const H5FD_t* file, H5FD_mem_t) { return disk_of(file).size; }

herr_t driver_read(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  auto* out = static_cast<char*>(buffer);
  while (size > 0) {
    const ssize_t got = ::pread(disk_of(file).descriptor(), out, size, static_cast<off_t>(address));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) {  // allocated but not yet written; HDF5 expects zeros
      std::memset(out, 0, size);
      return 0;
    }
    out += got;
    address += static_cast<haddr_t>(got);
    size -= static_cast<size_t>(got);
  }
  return 0;
}

herr_t driver_write(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, const void* buffer) {
  Disk& disk = disk_of(file);
  const auto* in = static_cast<const char*>(buffer);
  disk.size = std::max<std::uint64_t>(disk.size, address + size);
  while (size > 0 && disk.write_error == 0) {
    const ssize_t put = ::pwrite(disk.descriptor(), in, size, static_cast<off_t>(address));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      disk.write_error = put < 0 ? errno : ENOSPC;
      break;
    }
    in += put;
    address += static_cast<haddr_t>(put);
    size -= static_cast<size_t>(put);
  }
  return 0;
}

herr_t driver_truncate(H5FD_t* file, hid_t, hbool_t) {
  Disk& disk = disk_of(file);
  const haddr_t end = reinterpret_cast<OpenFile*>(file)->end_of_allocation;
  if (end == disk.size) return 0;
  if (disk.write_error == 0 && ::ftruncate(disk.descriptor(), static_cast<off_t>(end)) != 0) disk.write_error = errno;
  disk.size = end;
  return 0;
}

hid_t driver() {
  static const hid_t id = [] {
    static H5FD_class_t c{};
#if H5_VERSION_GE(1, 13, 0)
    c.version = H5FD_CLASS_VERSION;
    c.value = 511;  // HDF5 reserves 256 to 511 for drivers that are not registered with its maintainers
#endif
    c.name = "kvq";
    c.maxaddr = static_cast<haddr_t>(1) << 62;
    c.fc_degree = H5F_CLOSE_WEAK;
    c.fapl_size = sizeof(DriverInfo);
    c.open = driver_open;
    c.close = driver_close;
    c.query = driver_query;
    c.get_eoa = driver_get_eoa;
    c.set_eoa = driver_set_eoa;
    c.get_eof = driver_get_eof;
    c.read = driver_read;
    c.write = driver_write;
    c.truncate = driver_truncate;
    const H5FD_mem_t map[] = H5FD_FLMAP_DICHOTOMY;
    std::memcpy(c.fl_map, map, sizeof map);
    return H5FDregister(&c);
  }();
  KVQ_ASSERT(id >= 0);
  return id;
}

}  // namespace

Disk::Disk(const std::filesystem::path& path, std::string name, Mode mode) : name_(std::move(name)) {
  const bool create = mode == Mode::Create;
  descriptor_ = ::open(path.c_str(), create ? O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    fail(create ? ErrorKind::Io : ErrorKind::Input,
         fmt::format("{}: cannot be {}: {}", name_, create ? "created" : "opened", std::strerror(errno)));
  }
  struct stat status {};
  ::fstat(descriptor_, &status);
  if (!create && !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail(ErrorKind::Input, fmt::format("{}: is {}, an HDF5 file is needed", name_,
                                       S_ISDIR(status.st_mode) ? "a folder" : "not a regular file"));
  }
  size = static_cast<std::uint64_t>(status.st_size);
}

Disk::~Disk() { ::close(descriptor_); }

void Disk::check() const {
  if (write_error != 0) fail(ErrorKind::Io, fmt::format("{}: write error: {}", name_, std::strerror(write_error)));
}

hid_t Disk::access_properties() {
  const hid_t properties = H5Pcreate(H5P_FILE_ACCESS);
  const DriverInfo info{this};
  KVQ_ASSERT(H5Pset_driver(properties, driver(), &info) >= 0);
  // Metadata of this generation carries checksums; every h5py and h5dump since 2016 reads it.
  KVQ_ASSERT(H5Pset_libver_bounds(properties, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0);
  return properties;
}

}  // namespace kvq::h5
