#include <kvq/quant/pooled_range.h>

#include <algorithm>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/stats/quantile.h>

namespace kvq {

PooledRange pooled_range(std::span<const std::span<const float>> parts, int width, int group, double tail,
                         int threads) {
  PooledRange range;
  range.lower.resize(static_cast<std::size_t>(width));
  range.upper.resize(static_cast<std::size_t>(width));
  const std::int64_t groups = (width + group - 1) / group;
  parallel_for(groups, threads, [&](std::int64_t index) {
    const auto first = static_cast<std::size_t>(index * group);
    const std::size_t last = std::min(first + static_cast<std::size_t>(group), static_cast<std::size_t>(width));
    std::vector<float> values;
    for (const std::span<const float> part : parts) {
      for (std::size_t begin = 0; begin < part.size(); begin += static_cast<std::size_t>(width)) {
        const auto row = part.subspan(begin, static_cast<std::size_t>(width));
        values.insert(values.end(), row.begin() + static_cast<std::ptrdiff_t>(first),
                      row.begin() + static_cast<std::ptrdiff_t>(last));
      }
    }
    KVQ_ASSERT(!values.empty());
    const QuantilePair ends = quantile_pair(values, tail);
    std::fill(range.lower.begin() + static_cast<std::ptrdiff_t>(first),
              range.lower.begin() + static_cast<std::ptrdiff_t>(last), ends.lower);
    std::fill(range.upper.begin() + static_cast<std::ptrdiff_t>(first),
              range.upper.begin() + static_cast<std::ptrdiff_t>(last), ends.upper);
  });
  return range;
}

}  // namespace kvq
