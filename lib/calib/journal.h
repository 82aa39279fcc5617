#pragma once
// The journal of a run: the folder `<output>.journal` with a manifest (what it belongs to), a lock, and one file per
// finished sequence. HDF5 files do not survive being killed; these do.

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <kvq/calib/sequence_file.h>

namespace kvq {

/// Everything that the content of calib.h5 depends on, as "name = value" in a fixed order.
struct JournalIdentity {
  std::vector<std::pair<std::string, std::string>> entries;
  std::string text() const;
  std::string sha256() const;
};

class Journal {
 public:
  /// Opens the folder, or makes it, and locks it. Throws Io when another run holds it or the disk refuses; Mismatch
  /// when it belongs to other settings (names what differs), unless `force` says to start over; Usage when the folder
  /// is not a journal.
  Journal(std::filesystem::path folder, const JournalIdentity& identity, const SequenceLayout& layout, bool force);
  /// Gives up the lock; what is finished stays.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  static std::filesystem::path folder_of(const std::filesystem::path& output) { return output.string() + ".journal"; }
  /// True when `folder` holds a manifest of exactly this identity.
  static bool belongs(const std::filesystem::path& folder, const JournalIdentity& identity);

  bool finished(std::int64_t sequence) const;
  SequenceWriter begin(std::int64_t sequence) const;
  SequenceReader open(std::int64_t sequence) const;
  /// Removes the folder: the work is done.
  void remove();

 private:
  std::filesystem::path file_of(std::int64_t sequence) const;
  void lock();
  void check_manifest(const JournalIdentity& identity, bool force);
  void clear(bool finished_too) const;

  std::filesystem::path folder_;
  SequenceLayout layout_;
  std::string identity_;
  int lock_ = -1;
};

}  // namespace kvq
