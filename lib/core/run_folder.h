#pragma once
// Where an unfinished run keeps what it has finished: a folder with a manifest (what it belongs to), a lock, and one
// file per finished part. What is there survives being killed; a run of the same identity goes on with it.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvq {

/// Everything that the results depend on, as "name = value" in a fixed order. Names are different from each other.
struct RunIdentity {
  std::vector<std::pair<std::string, std::string>> entries;
  /// One entry for every "name = value" line of settings, each name with "--" in front.
  void add_settings(const std::string& toml);
  std::string text() const;
  std::string sha256() const;
};

class RunFolder {
 public:
  /// Opens the folder, or makes it, and locks it; parts are files named `part_prefix` and a number. Throws Io when
  /// another run holds it or the disk refuses; Mismatch when it belongs to other settings (names what differs) or its
  /// manifest is damaged, unless `force` says to start over; Usage when it is not one of ours or holds somebody's file.
  RunFolder(std::filesystem::path folder, const RunIdentity& identity, std::string part_prefix, bool force);
  /// Gives up the lock. What is finished stays; a folder without a finished part goes away.
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  /// True when `folder` holds a manifest of exactly this identity.
  static bool belongs(const std::filesystem::path& folder, const RunIdentity& identity);
  /// True when `folder` is what a run leaves that was killed while it removed it: nothing, or a lock alone.
  static bool is_left_over(const std::filesystem::path& folder);

  std::filesystem::path part(std::int64_t index) const;
  bool finished(std::int64_t index) const;
  /// A finished part that is small enough for memory, with the SHA-256 of its number and content in front: a damaged
  /// one, and one that stands in another's place, count as not there.
  void store(std::int64_t index, std::string_view body) const;
  std::optional<std::string> load(std::int64_t index) const;
  /// Removes the folder: the work is done. What others put there meanwhile stays.
  void remove();

 private:
  void lock();
  void check_manifest(const RunIdentity& identity, bool force);
  void check_entries() const;
  /// Of this kind of run, or of another that had the folder before.
  static bool is_finished_part(const std::filesystem::path& path);
  void clear(bool finished_too) const;
  void remove_if_empty_handed() noexcept;

  std::filesystem::path folder_;
  std::string part_prefix_;
  int lock_ = -1;
};

}  // namespace kvq
