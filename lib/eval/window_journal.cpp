#include <kvq/eval/window_journal.h>

#include <cstring>
#include <type_traits>

namespace kvq {

namespace {

template <typename T>
void append(std::string& bytes, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename T>
bool take(std::string_view& bytes, T& value) {
  if (bytes.size() < sizeof value) return false;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return true;
}

void append_floats(std::string& bytes, const std::vector<float>& values) {
  append(bytes, static_cast<std::uint64_t>(values.size()));
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

bool take_floats(std::string_view& bytes, std::vector<float>& values) {
  std::uint64_t count = 0;
  if (!take(bytes, count) || count > bytes.size() / sizeof(float)) return false;
  values.resize(count);
  if (count > 0) std::memcpy(values.data(), bytes.data(), count * sizeof(float));
  bytes.remove_prefix(count * sizeof(float));
  return true;
}

std::string serialize(const std::vector<WindowRecord>& records) {
  std::string bytes;
  append(bytes, static_cast<std::uint64_t>(records.size()));
  for (const WindowRecord& record : records) {
    append(bytes, record.comparison.nll);
    append(bytes, record.comparison.same_top1);
    append(bytes, record.cache_bytes);
    append(bytes, record.seconds);
    append_floats(bytes, record.comparison.kl);
    append_floats(bytes, record.comparison.token_nll);
  }
  return bytes;
}

bool deserialize(std::string_view bytes, std::vector<WindowRecord>& records) {
  std::uint64_t count = 0;
  if (!take(bytes, count) || count != records.size()) return false;
  for (WindowRecord& record : records) {
    if (!take(bytes, record.comparison.nll) || !take(bytes, record.comparison.same_top1) ||
        !take(bytes, record.cache_bytes) || !take(bytes, record.seconds) || !take_floats(bytes, record.comparison.kl) ||
        !take_floats(bytes, record.comparison.token_nll)) {
      return false;
    }
  }
  return bytes.empty();
}

}  // namespace

std::optional<std::vector<WindowRecord>> WindowJournal::load(std::int64_t window, std::size_t variants) const {
  const std::optional<std::string> body = folder_.load(window);
  std::vector<WindowRecord> records(variants);
  if (!body || !deserialize(*body, records)) return std::nullopt;
  return records;
}

void WindowJournal::store(std::int64_t window, const std::vector<WindowRecord>& records) const {
  folder_.store(window, serialize(records));
}

}  // namespace kvq
