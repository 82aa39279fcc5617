#include <kvq/fit/lloyd.h>

#include <algorithm>
#include <cstddef>

namespace kvq {

namespace {

struct Sums {
  double weight = 0, moment = 0;
};

/// Sums over any range of cells: whole blocks from a table, the rest cell by cell, always in ascending order.
class RangeSums {
 public:
  explicit RangeSums(std::span<const Moments> cells) : sums_(cells.size()), blocks_(cells.size() / kBlock) {
    for (std::size_t i = 0; i < cells.size(); ++i) sums_[i] = {cells[i].weight, cells[i].weight * cells[i].mean};
    for (std::size_t block = 0; block < blocks_.size(); ++block)
      blocks_[block] = add(sums_, block * kBlock, (block + 1) * kBlock, {});
  }

  Sums operator()(std::size_t begin, std::size_t end) const {
    const std::size_t first_block = (begin + kBlock - 1) / kBlock, end_block = end / kBlock;
    if (first_block >= end_block) return add(sums_, begin, end, {});
    Sums total = add(sums_, begin, first_block * kBlock, {});
    total = add(blocks_, first_block, end_block, total);
    return add(sums_, end_block * kBlock, end, total);
  }

 private:
  static constexpr std::size_t kBlock = 64;
  static Sums add(const std::vector<Sums>& items, std::size_t begin, std::size_t end, Sums total) {
    for (std::size_t i = begin; i < end; ++i) {
      total.weight += items[i].weight;
      total.moment += items[i].moment;
    }
    return total;
  }

  std::vector<Sums> sums_, blocks_;
};

}  // namespace

std::vector<double> midpoints(std::span<const double> centroids) {
  std::vector<double> result;
  for (std::size_t i = 1; i < centroids.size(); ++i) result.push_back(centroids[i - 1] / 2 + centroids[i] / 2);
  return result;
}

void lloyd(std::span<const Moments> cells, std::span<double> centroids, int most_rounds) {
  const RangeSums sums(cells);
  std::vector<double> means(cells.size());
  for (std::size_t i = 0; i < cells.size(); ++i) means[i] = cells[i].mean;
  std::vector<std::size_t> ends(centroids.size(), 0);
  for (int round = 0; round < most_rounds; ++round) {
    const std::vector<double> boundaries = midpoints(centroids);
    bool changed = false;
    std::size_t begin = 0;
    for (std::size_t cluster = 0; cluster < centroids.size(); ++cluster) {
      const auto from = means.begin() + static_cast<std::ptrdiff_t>(begin);
      const std::size_t end = cluster < boundaries.size()
                                  ? std::upper_bound(from, means.end(), boundaries[cluster]) - means.begin()
                                  : means.size();
      changed |= end != ends[cluster];
      ends[cluster] = end;
      if (end > begin) {
        const Sums sum = sums(begin, end);
        // Rounding could leave the cluster's own range by an ulp, which would break the order.
        centroids[cluster] = std::clamp(sum.moment / sum.weight, means[begin], means[end - 1]);
      }
      begin = end;
    }
    if (!changed) return;
  }
}

double clustering_error(std::span<const Moments> cells, std::span<const double> centroids) {
  const std::vector<double> boundaries = midpoints(centroids);
  double error = 0;
  std::size_t cluster = 0;
  for (const Moments& cell : cells) {
    while (cluster < boundaries.size() && cell.mean > boundaries[cluster]) ++cluster;
    error += cell.error_about(centroids[cluster]);
  }
  return error;
}

}  // namespace kvq
