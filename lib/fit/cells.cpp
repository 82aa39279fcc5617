#include <kvq/fit/cells.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

using Weighted = std::pair<float, float>;  // value, weight

// Blocks fix the order of summation; few enough that their histograms stay in the second-level cache together.
constexpr std::int64_t kBlock = std::int64_t{1} << 19;
constexpr std::int64_t kMostBlocks = 16;

std::int64_t block_length(std::int64_t count) {
  const std::int64_t blocks = std::clamp<std::int64_t>((count + kBlock - 1) / kBlock, 1, kMostBlocks);
  return (count + blocks - 1) / blocks;
}

/// Sums in bin units around the bin's centre, so that nothing cancels; padded to one vector of four.
struct alignas(32) BinSums {
  double weight = 0, first = 0, second = 0, unused = 0;
};

/// Appends one cell per distinct value; `data` ascending.
void append_distinct(std::span<const Weighted> data, std::vector<Moments>& cells) {
  for (std::size_t i = 0; i < data.size();) {
    Moments cell{0, data[i].first, 0};
    for (; i < data.size() && data[i].first == cell.mean; ++i) cell.weight += data[i].second;
    cells.push_back(cell);
  }
}

[[noreturn]] void report_bad_input(std::span<const float> values, std::span<const float> weights) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i]))
      fail(ErrorKind::Numeric, fmt::format("k-means: value {} of {} is {}", i, values.size(), values[i]));
    if (!weights.empty() && !(weights[i] >= 0 && std::isfinite(weights[i]))) {
      fail(ErrorKind::Numeric, fmt::format("k-means: weight {} of {} is {}; weights are finite and not negative", i,
                                           values.size(), weights[i]));
    }
  }
  throw std::logic_error("k-means: the scan found a bad number that is not there");
}

/// Lanes let the compiler use vector minima without reordering anything that rounds.
struct LaneScan {
  static constexpr int kLanes = 16;
  float minimum[kLanes], maximum[kLanes], bad[kLanes] = {};
  std::int32_t count[kLanes] = {};
  LaneScan() {
    std::fill_n(minimum, kLanes, std::numeric_limits<float>::infinity());
    std::fill_n(maximum, kLanes, -std::numeric_limits<float>::infinity());
  }
  void add(int lane, float value, float weight) {
    const bool counts = weight > 0;
    const float low = counts ? value : std::numeric_limits<float>::infinity();
    const float high = counts ? value : -std::numeric_limits<float>::infinity();
    minimum[lane] = low < minimum[lane] ? low : minimum[lane];
    maximum[lane] = high > maximum[lane] ? high : maximum[lane];
    count[lane] += counts ? 1 : 0;
    // NaN and infinity minus themselves are NaN, which stays; a negative weight leaves a NaN too.
    bad[lane] += (value - value) + (weight - weight) + (weight < 0 ? std::numeric_limits<float>::quiet_NaN() : 0.0f);
  }
};

}  // namespace

WeightedRange weighted_range(std::span<const float> values, std::span<const float> weights, int threads) {
  const auto total = static_cast<std::int64_t>(values.size());
  const std::int64_t grain = block_length(total);
  std::vector<WeightedRange> parts((total + grain - 1) / std::max<std::int64_t>(grain, 1));
  std::vector<std::uint8_t> bad(parts.size());
  parallel_ranges(total, grain, threads, [&](std::int64_t begin, std::int64_t end) {
    LaneScan scan;
    std::int64_t i = begin;
    std::int64_t count = 0;
    constexpr std::int64_t kFlush = std::int64_t{1} << 24;  // lanes count in 32 bits
    for (std::int64_t stop = begin; stop < end;) {
      stop = std::min(end, stop + kFlush);
      if (weights.empty()) {
        for (; i + LaneScan::kLanes <= stop; i += LaneScan::kLanes)
          for (int lane = 0; lane < LaneScan::kLanes; ++lane) scan.add(lane, values[i + lane], 1.0f);
      } else {
        for (; i + LaneScan::kLanes <= stop; i += LaneScan::kLanes)
          for (int lane = 0; lane < LaneScan::kLanes; ++lane) scan.add(lane, values[i + lane], weights[i + lane]);
      }
      for (; i < stop; ++i) scan.add(0, values[i], weights.empty() ? 1.0f : weights[i]);
      for (std::int32_t& lane : scan.count) count += std::exchange(lane, 0);
    }
    WeightedRange& part = parts[begin / grain];
    part.count = count;
    part.minimum = *std::min_element(scan.minimum, scan.minimum + LaneScan::kLanes);
    part.maximum = *std::max_element(scan.maximum, scan.maximum + LaneScan::kLanes);
    for (float lane : scan.bad) bad[begin / grain] |= lane != 0 ? 1 : 0;  // NaN != 0
  });
  if (std::find(bad.begin(), bad.end(), 1) != bad.end()) report_bad_input(values, weights);
  WeightedRange range;
  for (const WeightedRange& part : parts) {
    if (part.count == 0) continue;
    range.minimum = range.count == 0 ? part.minimum : std::min(range.minimum, part.minimum);
    range.maximum = range.count == 0 ? part.maximum : std::max(range.maximum, part.maximum);
    range.count += part.count;
  }
  return range;
}

CellTable CellTable::sorted(std::span<const float> values, std::span<const float> weights) {
  CellTable table(values, weights);
  std::vector<Weighted> data;
  data.reserve(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float weight = weights.empty() ? 1.0f : weights[i];
    if (weight > 0) data.emplace_back(values[i], weight);
  }
  std::sort(data.begin(), data.end());
  append_distinct(data, table.cells_);
  return table;
}

int CellTable::bin_of(double x) const {
  const double position = (x - low_) * bins_per_unit_;
  const int last = static_cast<int>(resolved_.size()) - 1;
  return position >= last ? last : (position > 0 ? static_cast<int>(position) : 0);
}

CellTable CellTable::histogram(std::span<const float> values, std::span<const float> weights,
                               const WeightedRange& range, int bins, int threads) {
  CellTable table(values, weights);
  table.resolved_.assign(bins, 0);
  table.bin_of_value_.resize(values.size());
  table.low_ = range.minimum;
  table.bins_per_unit_ = bins / (static_cast<double>(range.maximum) - range.minimum);
  const auto total = static_cast<std::int64_t>(values.size());
  const std::int64_t grain = block_length(total);
  std::vector<std::vector<BinSums>> blocks((total + grain - 1) / grain);
  parallel_ranges(total, grain, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<BinSums>& sums = blocks[begin / grain];
    sums.resize(bins);
    const double low = table.low_, bins_per_unit = table.bins_per_unit_, last = bins - 1;
    // Positions first, a chunk at a time: that half is vectorised.
    constexpr std::int64_t kChunk = 512;
    double positions[kChunk];
    std::int32_t indices[kChunk];
    for (std::int64_t chunk = begin; chunk < end; chunk += kChunk) {
      const std::int64_t length = std::min(kChunk, end - chunk);
      const float* x = values.data() + chunk;
      for (std::int64_t i = 0; i < length; ++i) {
        double position = (static_cast<double>(x[i]) - low) * bins_per_unit;
        position = position > 0 ? position : 0;  // values without weight may lie outside the range
        positions[i] = position;
        indices[i] = static_cast<std::int32_t>(position < last ? position : last);
      }
      std::uint16_t* kept = table.bin_of_value_.data() + chunk;
      for (std::int64_t i = 0; i < length; ++i) {
        const float weight = weights.empty() ? 1.0f : weights[chunk + i];
        const int bin = indices[i];
        kept[i] = static_cast<std::uint16_t>(bin);
        if (!(weight > 0)) continue;
        const double offset = positions[i] - bin - 0.5;
        const double first = weight * offset;
        BinSums& sum = sums[bin];
        sum.weight += weight;
        sum.first += first;
        sum.second += first * offset;
      }
    }
  });
  const double width = 1.0 / table.bins_per_unit_;
  for (int bin = 0; bin < bins; ++bin) {
    BinSums sum;
    for (const std::vector<BinSums>& block : blocks) {
      sum.weight += block[bin].weight;
      sum.first += block[bin].first;
      sum.second += block[bin].second;
    }
    if (sum.weight == 0) continue;
    const double offset = sum.first / sum.weight;
    const double spread = std::max(0.0, sum.second - offset * sum.first) * width * width;
    table.cells_.push_back({sum.weight, table.low_ + (bin + 0.5 + offset) * width, spread});
    table.bin_of_cell_.push_back(bin);
  }
  return table;
}

bool CellTable::resolve(std::span<const double> boundaries, int margin, int threads) {
  if (resolved_.empty()) return false;
  const int bins = static_cast<int>(resolved_.size());
  std::vector<std::uint8_t> wanted(bins, 0);
  bool any = false;
  for (double boundary : boundaries) {
    const int bin = bin_of(boundary);
    if (resolved_[bin] != 0) continue;
    any = true;
    for (int near = std::max(0, bin - margin); near <= std::min(bins - 1, bin + margin); ++near)
      wanted[near] = resolved_[near] == 0 ? 1 : 0;
  }
  if (!any) return false;

  const auto total = static_cast<std::int64_t>(values_.size());
  const std::int64_t grain = block_length(total);
  std::vector<std::vector<Weighted>> blocks((total + grain - 1) / grain);
  parallel_ranges(total, grain, threads, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Weighted>& found = blocks[begin / grain];
    const std::uint8_t* flags = wanted.data();
    const std::uint16_t* bin = bin_of_value_.data();
    for (std::int64_t i = begin; i < end; ++i) {
      if (flags[bin[i]] == 0) {  // rarely otherwise: look at eight at a time while none is wanted
        while (i + 8 < end && (flags[bin[i + 1]] | flags[bin[i + 2]] | flags[bin[i + 3]] | flags[bin[i + 4]] |
                               flags[bin[i + 5]] | flags[bin[i + 6]] | flags[bin[i + 7]] | flags[bin[i + 8]]) == 0)
          i += 8;
        continue;
      }
      const float weight = weights_.empty() ? 1.0f : weights_[i];
      if (weight > 0) found.emplace_back(values_[i], weight);
    }
  });
  std::vector<Weighted> data;
  for (const std::vector<Weighted>& block : blocks) data.insert(data.end(), block.begin(), block.end());
  std::sort(data.begin(), data.end());

  std::vector<Moments> cells;
  std::vector<int> bin_of_cell;
  std::size_t next = 0;
  for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
    const int bin = bin_of_cell_[cell];
    if (wanted[bin] == 0) {
      cells.push_back(cells_[cell]);
    } else {
      std::size_t end = next;
      while (end < data.size() && bin_of(data[end].first) == bin) ++end;
      append_distinct(std::span(data).subspan(next, end - next), cells);
      next = end;
    }
    bin_of_cell.resize(cells.size(), bin);
  }
  KVQ_ASSERT(next == data.size());
  cells_ = std::move(cells);
  bin_of_cell_ = std::move(bin_of_cell);
  for (int bin = 0; bin < bins; ++bin) resolved_[bin] |= wanted[bin];
  return true;
}

}  // namespace kvq
