#pragma once
// HDF5's access to one file, through a driver of our own.
//
// Why not HDF5's default driver: when a write fails (full disk, quota, file-size limit) the library is left with dirty
// metadata that it cannot flush; closing the file then fails again and again, up to the end of the process. This driver
// remembers the first write error and lets HDF5 carry on in the belief that all is well; we ask it afterwards and throw
// the error away together with the file. It also takes no locks, which network and read-only file systems often refuse.

#include <cstdint>
#include <filesystem>
#include <string>

#include <hdf5.h>

namespace kvq::h5 {

/// An open file descriptor and the first write error on it. Outlives every HDF5 handle of the file.
class Disk {
 public:
  enum class Mode { Create, Read };
  /// Create: the file must not exist yet (throws Io). Read: throws Input when missing, a folder or unreadable.
  /// `name` is what messages call the file.
  Disk(const std::filesystem::path& path, std::string name, Mode mode);
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  const std::string& name() const { return name_; }
  /// Throws Io when a write has failed.
  void check() const;

  /// File access property list that makes H5Fcreate and H5Fopen use this descriptor. The caller closes it.
  hid_t access_properties();

  int descriptor() const { return descriptor_; }
  std::uint64_t size = 0;  ///< end of file as the driver knows it
  int write_error = 0;     ///< errno of the first failed write

 private:
  std::string name_;
  int descriptor_ = -1;
};

}  // namespace kvq::h5
