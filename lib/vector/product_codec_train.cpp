// Training of product codebooks: each subspace by itself.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/core/rng.h>
#include <kvq/vector/centroid_loops.h>
#include <kvq/vector/product_codec.h>
#include <kvq/vector/scalar_codec.h>

namespace kvq {

namespace {

/// Weights for `count` things: all 1 where none are given or none is positive.
std::vector<float> usual_weights(std::span<const float> weights, std::size_t count, const char* what) {
  if (weights.empty()) return std::vector<float>(count, 1.0f);
  KVQ_ASSERT(weights.size() == count);
  for (std::size_t index = 0; index < count; ++index) {
    if (!std::isfinite(weights[index]) || weights[index] < 0)
      fail(ErrorKind::Numeric, fmt::format("weight of {} {}: {}", what, index, weights[index]));
  }
  std::vector<float> result(weights.begin(), weights.end());
  if (std::all_of(result.begin(), result.end(), [](float weight) { return weight == 0; }))
    std::fill(result.begin(), result.end(), 1.0f);
  return result;
}

/// k-means in a few dimensions; `points`: `[width, rows]`, so that loops run over rows. Squared distances take the
/// weights of channels, sums over rows those of rows.
class SubspaceKMeans {
 public:
  SubspaceKMeans(std::vector<float> points, std::size_t rows, std::span<const float> channel_weights,
                 std::span<const float> row_weights, std::size_t clusters)
      : points_(std::move(points)),
        rows_(rows),
        width_(channel_weights.size()),
        clusters_(clusters),
        channel_weights_(channel_weights.begin(), channel_weights.end()),
        row_weights_(row_weights.begin(), row_weights.end()) {}

  /// The best of `starts`: `[clusters, width]`.
  std::vector<float> run(std::uint64_t seed, int starts, int iterations) {
    Rng rng(seed);
    std::vector<float> best;
    double least = std::numeric_limits<double>::infinity();
    for (int start = 0; start < starts; ++start) {
      const double error = run_once(rng, iterations);
      if (error < least) {
        least = error;
        best = centroids_;
      }
    }
    return best;
  }

 private:
  /// Leaves centroids of the error that it returns.
  double run_once(Rng& rng, int iterations) {
    start(rng);
    double error = assign();
    for (int iteration = 0; iteration < iterations && error > 0; ++iteration) {
      const std::vector<float> before = centroids_;
      move();
      const double moved = assign();
      if (moved >= error) {
        centroids_ = before;
        break;
      }
      const bool settled = error - moved < 1e-4 * error;
      error = moved;
      if (settled) break;
    }
    return error;
  }

  std::vector<float> point(std::size_t row) const {
    std::vector<float> position(width_);
    for (std::size_t channel = 0; channel < width_; ++channel) position[channel] = points_[channel * rows_ + row];
    return position;
  }

  static double total(const std::vector<double>& sums) { return std::accumulate(sums.begin(), sums.end(), 0.0); }

  double share(std::size_t row) const {
    return static_cast<double>(row_weights_[row]) * static_cast<double>(nearest_[row]);
  }

  /// A row with probability `share` / `sum`: first its block, then itself.
  std::size_t draw(Rng& rng, double sum) const {
    double left = rng.uniform() * sum;
    std::size_t block = 0, last_block = 0;
    for (; block < block_shares_.size(); ++block) {
      if (block_shares_[block] <= 0) continue;
      last_block = block;
      if (left < block_shares_[block]) break;
      left -= block_shares_[block];
    }
    const std::size_t first = std::min(block, last_block) * kBlock;
    std::size_t last = first;
    for (std::size_t row = first; row < std::min(first + kBlock, rows_); ++row) {
      if (share(row) <= 0) continue;
      last = row;
      left -= share(row);
      if (left < 0) break;
    }
    return last;
  }

  void start(Rng& rng) {
    const std::size_t blocks = (rows_ + kBlock - 1) / kBlock;
    std::vector<float> distances(rows_), best(rows_, std::numeric_limits<float>::infinity());
    std::vector<double> shares(blocks), best_shares(blocks);
    const int candidates = 2 + static_cast<int>(std::log(static_cast<double>(clusters_)));
    nearest_.assign(rows_, 1.0f);  // the first is drawn by weight alone
    block_shares_.assign(blocks, 0.0);
    for (std::size_t row = 0; row < rows_; ++row) block_shares_[row / kBlock] += share(row);
    const std::vector<float> first = point(draw(rng, total(block_shares_)));
    centroids_ = first;
    loops_.lesser(points_by_channel(), first.data(), row_weights_.data(), best.data(), nearest_.data(),
                  block_shares_.data());
    if (const double all = total(block_shares_); !std::isfinite(all))
      fail(ErrorKind::Numeric, fmt::format("product quantization: squared distances of rows add up to {}: the values "
                                           "are too large for a float",
                                           all));
    while (centroids_.size() < clusters_ * width_) {
      const double sum = total(block_shares_);
      if (sum <= 0) {  // every row is a centroid: spare ones repeat the first, and lose every tie to it
        centroids_.insert(centroids_.end(), first.begin(), first.end());
        continue;
      }
      double least = std::numeric_limits<double>::infinity();
      std::vector<float> chosen;
      for (int candidate = 0; candidate < candidates; ++candidate) {
        const std::vector<float> position = point(draw(rng, sum));
        loops_.lesser(points_by_channel(), position.data(), row_weights_.data(), nearest_.data(), distances.data(),
                      shares.data());
        const double error = total(shares);
        if (error < least) {
          least = error;
          chosen = position;
          best.swap(distances);
          best_shares.swap(shares);
        }
      }
      centroids_.insert(centroids_.end(), chosen.begin(), chosen.end());
      nearest_.swap(best);
      block_shares_.swap(best_shares);
    }
  }

  PointsByChannel points_by_channel() const {
    const auto rows = static_cast<std::int64_t>(rows_);
    return {points_.data(), rows, rows, static_cast<int>(width_), channel_weights_.data()};
  }

  /// Nearest centroid of each row, the first of equals; returns the error.
  double assign() {
    owner_.resize(rows_);
    loops_.nearest(points_by_channel(), centroids_.data(), static_cast<int>(clusters_), owner_.data(), nearest_.data());
    double sum = 0;
    for (std::size_t row = 0; row < rows_; ++row) sum += share(row);
    return sum;
  }

  /// Every centroid to the mean of its rows; one without to the row with the largest error.
  void move() {
    std::vector<double> sums(clusters_ * width_, 0.0), weights(clusters_, 0.0);
    for (std::size_t row = 0; row < rows_; ++row) {
      const double weight = row_weights_[row];
      weights[owner_[row]] += weight;
      for (std::size_t channel = 0; channel < width_; ++channel)
        sums[owner_[row] * width_ + channel] += weight * static_cast<double>(points_[channel * rows_ + row]);
    }
    for (std::size_t cluster = 0; cluster < clusters_; ++cluster) {
      if (weights[cluster] > 0) {
        for (std::size_t channel = 0; channel < width_; ++channel)
          centroids_[cluster * width_ + channel] =
              static_cast<float>(sums[cluster * width_ + channel] / weights[cluster]);
        continue;
      }
      std::size_t worst = 0;
      double worst_error = 0;
      for (std::size_t row = 0; row < rows_; ++row) {
        if (share(row) > worst_error) worst = row, worst_error = share(row);
      }
      if (worst_error == 0) continue;
      const std::vector<float> position = point(worst);
      std::copy(position.begin(), position.end(), centroids_.begin() + static_cast<std::ptrdiff_t>(cluster * width_));
      nearest_[worst] = 0;
    }
  }

  static constexpr auto kBlock = static_cast<std::size_t>(CentroidLoops::kBlock);

  const CentroidLoops& loops_ = centroid_loops();
  std::vector<float> points_;
  std::size_t rows_, width_, clusters_;
  std::vector<float> channel_weights_, row_weights_, centroids_, nearest_;
  std::vector<double> block_shares_;  ///< sums of `share` over blocks of rows
  std::vector<std::uint32_t> owner_;
};

}  // namespace

ProductBooks train_product(std::span<const float> x, int dim, std::span<const float> row_weights,
                           std::span<const float> channel_weights, const ProductOptions& options) {
  KVQ_ASSERT(options.bits >= 1 && options.bits <= 8 && options.subspaces >= 1);
  if (dim % options.subspaces != 0)
    fail(ErrorKind::Usage, fmt::format("product quantization: {} subspaces for rows of {} channels; the number of "
                                       "subspaces must divide that of channels",
                                       options.subspaces, dim));
  const std::size_t rows = static_cast<std::size_t>(check_rows(x, dim)), channels = static_cast<std::size_t>(dim);
  const std::size_t spaces = static_cast<std::size_t>(options.subspaces), width = channels / spaces;
  const std::size_t clusters = std::size_t{1} << options.bits;
  std::vector<float> of_rows = usual_weights(row_weights, rows, "row");
  ProductBooks books;
  books.dim = dim;
  books.subspaces = options.subspaces;
  books.bits = options.bits;
  books.norm = options.norm;
  books.exponent = options.norm ? scale_exponent(x, dim, RowScale::Norm) : 0;
  books.centroids.assign(clusters * channels, 0.0f);
  books.channel_weights = usual_weights(channel_weights, channels, "channel");
  if (rows == 0) return books;

  std::vector<float> inverse(rows, 1.0f);
  for (std::size_t row = 0; options.norm && row < rows; ++row) {
    const auto values = x.subspan(row * channels, channels);
    const float norm = row_scale(half_row_scale(values, RowScale::Norm, books.exponent, static_cast<std::int64_t>(row)),
                                 books.exponent);
    inverse[row] = norm > 0 ? 1.0f / norm : 0.0f;
    const float relative = std::ldexp(norm, -books.exponent);  // squares of norms may be beyond a float
    of_rows[row] *= relative * relative;                       // the error counts in x
  }
  if (options.norm) of_rows = usual_weights(of_rows, rows, "row");
  constexpr std::size_t kManyDistances = std::size_t{1} << 21;
  const int starts = options.starts > 0
                         ? options.starts
                         : static_cast<int>(std::clamp<std::size_t>(kManyDistances / (rows * clusters), 1, 10));
  parallel_for(options.subspaces, options.threads, [&](std::int64_t space) {
    const std::size_t first = static_cast<std::size_t>(space) * width;
    std::vector<float> points(width * rows);
    for (std::size_t channel = 0; channel < width; ++channel) {
      for (std::size_t row = 0; row < rows; ++row)
        points[channel * rows + row] = x[row * channels + first + channel] * inverse[row];
    }
    const auto weights = std::span<const float>(books.channel_weights).subspan(first, width);
    SubspaceKMeans kmeans(std::move(points), rows, weights, of_rows, clusters);
    const std::vector<float> centroids =
        kmeans.run(options.seed + static_cast<std::uint64_t>(space), starts, options.iterations);
    std::copy(centroids.begin(), centroids.end(),
              books.centroids.begin() + static_cast<std::ptrdiff_t>(first * clusters));
  });
  return books;
}

}  // namespace kvq
