#include <kvq/coding/entropy.h>

#include <cmath>
#include <limits>

#include <kvq/core/error.h>

namespace kvq {

std::array<std::uint64_t, 256> count_symbols(std::span<const std::uint8_t> codes) {
  std::array<std::uint64_t, 256> counts{};
  for (const std::uint8_t code : codes) ++counts[code];
  return counts;
}

double shannon_bits(std::span<const std::uint64_t> counts) { return cross_bits(counts, counts); }

double cross_bits(std::span<const std::uint64_t> counts, std::span<const std::uint64_t> model) {
  KVQ_ASSERT(counts.size() == model.size());
  double total = 0, model_total = 0;
  for (const std::uint64_t count : counts) total += static_cast<double>(count);
  for (const std::uint64_t count : model) model_total += static_cast<double>(count);
  if (total == 0) return 0;
  double bits = 0;
  for (std::size_t symbol = 0; symbol < counts.size(); ++symbol) {
    if (counts[symbol] == 0) continue;
    if (model[symbol] == 0) return std::numeric_limits<double>::infinity();
    bits -= static_cast<double>(counts[symbol]) * std::log2(static_cast<double>(model[symbol]) / model_total);
  }
  return std::fabs(bits / total);  // one symbol alone: 0, not -0
}

}  // namespace kvq
