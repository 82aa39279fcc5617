#include <kvq/core/fingerprint.h>

#include <algorithm>

namespace kvq {

namespace {

/// Finalizer of splitmix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

}  // namespace

std::vector<std::uint64_t> fingerprints(std::span<const std::int32_t> ids) {
  std::vector<std::uint64_t> kept;
  for (std::size_t begin = 0; begin + kShingle <= ids.size(); ++begin) {
    std::uint64_t hash = 0;
    for (int offset = 0; offset < kShingle; ++offset) {
      hash = mix(hash + 0x9e3779b97f4a7c15ull + static_cast<std::uint32_t>(ids[begin + offset]));
    }
    if (hash % kKeepOneIn == 0) kept.push_back(hash);
  }
  std::sort(kept.begin(), kept.end());
  kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
  return kept;
}

double overlap(std::span<const std::uint64_t> text, std::span<const std::uint64_t> known) {
  if (text.empty()) return 0.0;
  const auto shared = std::count_if(text.begin(), text.end(), [&](std::uint64_t hash) {
    return std::binary_search(known.begin(), known.end(), hash);
  });
  return static_cast<double>(shared) / static_cast<double>(text.size());
}

}  // namespace kvq
