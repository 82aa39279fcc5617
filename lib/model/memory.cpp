#include <kvq/model/memory.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace kvq {

namespace {

constexpr std::int64_t kUnknown = std::numeric_limits<std::int64_t>::max();

/// The number in a file that holds only a number; nothing for "max" and for files that are not there.
std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  std::int64_t value = 0;
  std::ifstream file(path);
  if (!(file >> value)) return std::nullopt;
  return value;
}

/// Page cache counts as used but is given back on demand.
std::int64_t reclaimable(const std::filesystem::path& folder) {
  std::ifstream file(folder / "memory.stat");
  std::string key;
  std::int64_t value = 0, total = 0;
  while (file >> key >> value) {
    if (key == "inactive_file" || key == "active_file") total += value;
  }
  return total;
}

/// What `folder` and its ancestors up to `root` leave; a limit anywhere on the way counts.
std::int64_t left_in_group(const std::filesystem::path& root, std::filesystem::path folder, const char* limit,
                           const char* usage) {
  std::int64_t left = kUnknown;
  while (true) {
    const auto most = number_in(folder / limit), used = number_in(folder / usage);
    if (most && used) left = std::min(left, std::max<std::int64_t>(0, *most - *used + reclaimable(folder)));
    if (folder == root || !folder.has_relative_path()) return left;
    folder = folder.parent_path();
  }
}

std::int64_t left_in_groups() {
  const std::filesystem::path mount = "/sys/fs/cgroup";
  std::int64_t left = kUnknown;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::filesystem::path inside = std::filesystem::path(line.substr(second + 1)).relative_path();
    if (controllers.empty()) {
      left = std::min(left, left_in_group(mount, (mount / inside).lexically_normal(), "memory.max", "memory.current"));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      const std::filesystem::path root = mount / "memory";
      left = std::min(left, left_in_group(root, (root / inside).lexically_normal(), "memory.limit_in_bytes",
                                          "memory.usage_in_bytes"));
    }
  }
  return left;
}

}  // namespace

std::int64_t available_memory_bytes() {
  std::int64_t available = kUnknown;
  std::ifstream info("/proc/meminfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("MemAvailable:")) available = std::stoll(line.substr(13)) * 1024;
  }
  return std::min(available, left_in_groups());
}

void map_large_allocations() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
#endif
}

}  // namespace kvq
