#include <kvq/core/run_folder.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>

namespace kvq {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFirstLine = "kvq run 2";
constexpr std::string_view kDigestLine = "sha256 ";  // the last line: of all before it

std::string content(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string with_digest(const std::string& text) { return fmt::format("{}{}{}\n", text, kDigestLine, sha256_of(text)); }

/// A manifest without its last line; nothing when it is not what a run wrote.
std::optional<std::string> checked_manifest(const std::string& manifest) {
  const std::size_t last = kDigestLine.size() + 64 + 1;
  if (manifest.size() < last) return std::nullopt;
  const std::string text = manifest.substr(0, manifest.size() - last);
  if (with_digest(text) != manifest) return std::nullopt;
  return text;
}

std::map<std::string, std::string> entries_of(const std::string& manifest) {
  std::map<std::string, std::string> entries;
  std::istringstream lines(manifest);
  for (std::string line; std::getline(lines, line);) {
    if (const auto equals = line.find(" = "); equals != std::string::npos)
      entries[line.substr(0, equals)] = line.substr(equals + 3);
  }
  return entries;
}

/// "samples: 16 there, 8 now; …", the first three.
std::string differences(const std::string& there, const std::string& now) {
  const auto before = entries_of(there), after = entries_of(now);
  std::string text;
  int count = 0;
  const auto add = [&](const std::string& name, const std::string& old_value, const std::string& new_value) {
    if (++count <= 3)
      text += fmt::format("{}{}: {} there, {} now", text.empty() ? "" : "; ", name, old_value, new_value);
  };
  for (const auto& [name, value] : before) {
    const auto found = after.find(name);
    if (found == after.end() || found->second != value)
      add(name, value, found == after.end() ? "nothing" : found->second);
  }
  for (const auto& [name, value] : after) {
    if (!before.contains(name)) add(name, "nothing", value);
  }
  return count > 3 ? text + fmt::format("; {} more", count - 3) : text;
}

bool is_half_written(const fs::path& path) { return path.extension() == ".part"; }

}  // namespace

void RunIdentity::add_settings(const std::string& toml) {
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find(" = ");
    entries.emplace_back("--" + line.substr(0, equals), equals == std::string::npos ? "" : line.substr(equals + 3));
  }
}

std::string RunIdentity::text() const {
  std::string text = std::string(kFirstLine) + "\n";
  for (const auto& [name, value] : entries) text += fmt::format("{} = {}\n", name, value);
  return text;
}
std::string RunIdentity::sha256() const { return sha256_of(text()); }

bool RunFolder::belongs(const fs::path& folder, const RunIdentity& identity) {
  return content(folder / "manifest") == with_digest(identity.text());
}

bool RunFolder::is_left_over(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entry(folder, error), end;
  if (error) return false;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename() != "lock") return false;
  }
  return !error;
}

RunFolder::RunFolder(fs::path folder, const RunIdentity& identity, std::string part_prefix, bool force)
    : folder_(std::move(folder)), part_prefix_(std::move(part_prefix)) {
  std::error_code error;
  if (fs::exists(folder_, error) && !fs::is_directory(folder_, error)) {
    fail(ErrorKind::Usage,
         fmt::format("'{}' is in the way: it is where the run keeps what it has finished", folder_.string()));
  }
  lock();
  try {
    check_manifest(identity, force);
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

RunFolder::~RunFolder() {
  if (lock_ < 0) return;
  remove_if_empty_handed();
  ::close(lock_);
}

void RunFolder::remove_if_empty_handed() noexcept {
  std::error_code error;
  for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
    if (is_finished_part(entry->path())) return;
  }
  try {
    remove();
  } catch (...) {  // it was there before, or the disk refuses: nothing is lost
  }
}

void RunFolder::lock() {
  const fs::path path = folder_ / "lock";
  // A run that ends removes the folder; then the lock that we waited for is no longer the one in the folder.
  for (int attempt = 0; attempt < 100; ++attempt) {
    if (::mkdir(folder_.c_str(), 0777) != 0 && errno != EEXIST) {
      fail(ErrorKind::Io, fmt::format("{}: cannot be created: {}", folder_.string(), std::strerror(errno)));
    }
    lock_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0 && errno == ENOENT) continue;
    if (lock_ < 0) fail(ErrorKind::Io, fmt::format("{}: cannot be created: {}", path.string(), std::strerror(errno)));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int problem = errno;
      ::close(std::exchange(lock_, -1));
      if (problem == EWOULDBLOCK) {
        fail(ErrorKind::Io, fmt::format("another run is working on '{}'; let it finish or stop it", folder_.string()));
      }
      fail(ErrorKind::Io, fmt::format("{}: cannot be locked: {}", path.string(), std::strerror(problem)));
    }
    struct stat ours {
    }, there{};
    if (::fstat(lock_, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino) return;
    ::close(std::exchange(lock_, -1));
  }
  fail(ErrorKind::Io, fmt::format("{}: cannot be locked", folder_.string()));
}

void RunFolder::check_manifest(const RunIdentity& identity, bool force) {
  const fs::path path = folder_ / "manifest";
  clear(false);
  const bool same_run = belongs(folder_, identity);
  if (!same_run && fs::exists(path) && !force) {
    const std::optional<std::string> there = checked_manifest(content(path));
    if (!there) {
      fail(ErrorKind::Mismatch,
           fmt::format("'{}' is damaged, or of another version of kvq: whose unfinished run this is cannot be told; "
                       "pass --force to throw it away",
                       path.string()));
    }
    fail(ErrorKind::Mismatch,
         fmt::format("'{}' belongs to an unfinished run with other settings ({}); repeat that command to finish it, or "
                     "pass --force to throw it away",
                     folder_.string(), differences(*there, identity.text())));
  }
  check_entries();
  if (same_run) return;
  // The old manifest goes first: finished parts without one belong to nobody.
  ::unlink(path.c_str());
  clear(true);
  write_file_atomically(path, with_digest(identity.text()), true);
}

/// Somebody's file would keep the folder from being removed; without a manifest it is somebody's folder.
void RunFolder::check_entries() const {
  // Without one: just made, or killed before the manifest was there.
  const bool ours = fs::exists(folder_ / "manifest");
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const fs::path name = entry.path().filename();
    const bool expected = ours || name.string().starts_with(part_prefix_);
    if (name == "lock" || (ours && name == "manifest") || (expected && is_finished_part(entry.path()))) continue;
    if (ours)
      fail(ErrorKind::Usage,
           fmt::format("'{}' is in the way: the folder is where a run keeps what it has finished, and "
                       "goes away with it",
                       entry.path().string()));
    ::unlink((folder_ / "lock").c_str());
    fail(ErrorKind::Usage,
         fmt::format("'{}' is not a folder of ours, but that is where the run would keep what it has finished",
                     folder_.string()));
  }
}

void RunFolder::clear(bool finished_too) const {
  std::vector<fs::path> doomed;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if ((is_half_written(entry.path()) && !fs::is_directory(entry.path())) ||
        (finished_too && is_finished_part(entry.path())))
      doomed.push_back(entry.path());
  }
  for (const fs::path& path : doomed) {
    if (::unlink(path.c_str()) != 0)
      fail(ErrorKind::Io, fmt::format("{}: cannot be removed: {}", path.string(), std::strerror(errno)));
  }
}

fs::path RunFolder::part(std::int64_t index) const { return folder_ / fmt::format("{}{:06}", part_prefix_, index); }
bool RunFolder::finished(std::int64_t index) const { return is_finished_part(part(index)); }

namespace {
/// With its number, so that a part in another's place is told.
std::string part_digest(std::int64_t index, std::string_view body) {
  Sha256 hash;
  hash.update(fmt::format("part {}\n", index));
  hash.update(body);
  return hash.finish();
}
}  // namespace

void RunFolder::store(std::int64_t index, std::string_view body) const {
  write_file_atomically(part(index), part_digest(index, body) + std::string(body), true);
}

std::optional<std::string> RunFolder::load(std::int64_t index) const {
  constexpr std::size_t kDigest = 64;
  std::ifstream file(part(index), std::ios::binary);
  std::string content((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (content.size() < kDigest) return std::nullopt;
  const std::string digest = content.substr(0, kDigest);
  content.erase(0, kDigest);
  if (part_digest(index, content) != digest) return std::nullopt;
  return content;
}

bool RunFolder::is_finished_part(const fs::path& path) {
  std::error_code error;
  const std::string name = path.filename().string();
  const std::size_t dash = name.find('-');
  return dash != std::string::npos && dash > 0 && name.size() >= dash + 7 &&
         name.find_first_not_of("0123456789", dash + 1) == std::string::npos && fs::is_regular_file(path, error);
}

void RunFolder::remove() {
  clear(true);
  ::unlink((folder_ / "manifest").c_str());
  ::unlink((folder_ / "lock").c_str());
  if (::rmdir(folder_.c_str()) != 0 && errno != ENOTEMPTY && errno != EEXIST)
    fail(ErrorKind::Io, fmt::format("{}: cannot be removed: {}", folder_.string(), std::strerror(errno)));
}

}  // namespace kvq
