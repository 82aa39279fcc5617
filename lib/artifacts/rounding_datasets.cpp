#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

#include <kvq/artifacts/internal/rounding_datasets.h>
#include <kvq/artifacts/internal/schema.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

constexpr float kLargestUpdate = 1e9f;  ///< of an error; ratios of a damped matrix stay far below

h5::Shape channels_of(const SideQuantizer& side) {
  return {static_cast<std::uint64_t>(side.kv_heads), static_cast<std::uint64_t>(side.head_dim)};
}
h5::Shape blocks_of(const SideQuantizer& side) {
  const auto dim = static_cast<std::uint64_t>(side.head_dim);
  return {static_cast<std::uint64_t>(side.kv_heads), dim, dim};
}

/// Codebooks of equal size: one dataset each for centroids and decoded values.
struct BookSet {
  std::string suffix;
  std::uint64_t count, levels;
  h5::Shape shape() const { return {count, levels}; }
};

std::vector<BookSet> book_sets(const SideQuantizer& side) {
  std::vector<BookSet> sets;
  if (side.recipe.widths == Widths::Pair) {
    for (const int bits : width_choices(side.recipe))
      sets.push_back({fmt::format("_{}", bits), 1, std::uint64_t{1} << bits});
  } else {
    const int count = codebook_count(side.recipe, side.kv_heads, side.head_dim);
    if (count > 0)
      sets.push_back({"", static_cast<std::uint64_t>(count), static_cast<std::uint64_t>(code_levels(side.recipe))});
  }
  return sets;
}

std::vector<float> read_finite(const h5::Group& group, const std::string& name, const h5::Shape& wanted) {
  std::vector<float> numbers = group.read_floats(name, wanted);
  schema::require_finite(group, name, wanted, numbers);
  return numbers;
}

/// Integers of a table of channels, each from `lowest` to `highest`.
std::vector<std::int32_t> read_small(const h5::Group& group, const std::string& name, const h5::Shape& wanted,
                                     int lowest, int highest) {
  std::vector<std::int32_t> numbers = group.read_ints(name, wanted);
  for (std::size_t index = 0; index < numbers.size(); ++index) {
    if (numbers[index] < lowest || numbers[index] > highest) {
      group.damaged(name, fmt::format("has {} at {}, {} to {} are possible", numbers[index],
                                      schema::position(wanted, index), lowest, highest));
    }
  }
  return numbers;
}

void require_positive(const h5::Group& group, const std::string& name, const h5::Shape& shape,
                      std::span<const float> numbers, std::size_t first, std::size_t step) {
  for (std::size_t index = first; index < numbers.size(); index += step) {
    if (!(numbers[index] > 0.0f))
      group.damaged(name, fmt::format("has {} at {}, a positive number is needed", numbers[index],
                                      schema::position(shape, index)));
  }
}

void require_order(const h5::Group& group, const h5::Shape& shape, std::span<const std::int32_t> order) {
  const auto dim = static_cast<std::size_t>(shape[1]);
  for (std::size_t head = 0; head < order.size(); head += dim) {
    std::vector<std::uint8_t> seen(dim, 0);
    for (std::size_t index = head; index < head + dim; ++index) {
      if (seen[static_cast<std::size_t>(order[index])]++ != 0)
        group.damaged("coding_order",
                      fmt::format("names channel {} twice, at {} again", order[index], schema::position(shape, index)));
    }
  }
}

/// updates[j][k] is passed on from channel j to the later ones only: 0 for k <= j.
void require_upper(const h5::Group& group, const h5::Shape& shape, std::span<const float> updates) {
  const auto dim = static_cast<std::size_t>(shape[2]);
  for (std::size_t index = 0; index < updates.size(); ++index) {
    const std::size_t row = index / dim % dim, column = index % dim;
    if (column <= row && updates[index] != 0.0f)
      group.damaged("feedback", fmt::format("has {} at {}, where errors go to later channels only and 0 is needed",
                                            updates[index], schema::position(shape, index)));
    if (std::abs(updates[index]) > kLargestUpdate)
      group.damaged("feedback", fmt::format("has {} at {}, far more than an error", updates[index],
                                            schema::position(shape, index)));
  }
}

/// Symmetric, and no two channels more alike than each is to itself: |H_jk| <= sqrt(H_jj H_kk).
void require_metric(const h5::Group& group, const h5::Shape& shape, std::span<const float> hessian) {
  const auto dim = static_cast<std::size_t>(shape[2]);
  for (std::size_t index = 0; index < hessian.size(); ++index) {
    const std::size_t head = index / (dim * dim) * dim * dim, row = index / dim % dim, column = index % dim;
    if (row == column) continue;
    const double here = hessian[index], there = hessian[head + column * dim + row];
    const double bound =
        std::sqrt(static_cast<double>(hessian[head + row * (dim + 1)]) * hessian[head + column * (dim + 1)]);
    if (std::abs(here - there) > 1e-5 * bound)
      group.damaged("fisher", fmt::format("is not symmetric at {}", schema::position(shape, index)));
    if (std::abs(here) > bound * (1 + 1e-5))
      group.damaged("fisher",
                    fmt::format("has {} at {}, more than its diagonal allows", here, schema::position(shape, index)));
  }
}

}  // namespace

void write_codebooks(const h5::Group& group, const SideQuantizer& side) {
  auto book = side.codebooks.begin();
  for (const BookSet& set : book_sets(side)) {
    std::vector<float> centroids, decoded;
    for (std::uint64_t index = 0; index < set.count; ++index, ++book) {
      centroids.insert(centroids.end(), book->centroids.begin(), book->centroids.end());
      decoded.insert(decoded.end(), book->decoded.begin(), book->decoded.end());
    }
    group.write("centroids" + set.suffix, set.shape(), std::span<const float>(centroids));
    group.write("decoded" + set.suffix, set.shape(), std::span<const float>(decoded));
  }
}

void read_codebooks(const h5::Group& group, SideQuantizer& side) {
  for (const BookSet& set : book_sets(side)) {
    const h5::Shape wanted = set.shape();
    const std::string name = "centroids" + set.suffix;
    const std::vector<float> centroids = read_finite(group, name, wanted);
    const std::vector<float> decoded = read_finite(group, "decoded" + set.suffix, wanted);
    for (std::size_t index = 1; index < centroids.size(); ++index) {
      if (index % set.levels != 0 && centroids[index] < centroids[index - 1]) {
        group.damaged(name, fmt::format("is not sorted: {} at {} follows {}", centroids[index],
                                        schema::position(wanted, index), centroids[index - 1]));
      }
    }
    // Q-Norm stretches and shifts the centroids and nothing else moves them.
    for (std::size_t index = 0; index < decoded.size(); ++index) {
      if (!side.recipe.qnorm && decoded[index] != centroids[index]) {
        group.damaged("decoded" + set.suffix,
                      fmt::format("is {} at {}, where '{}' has {}; they differ with Q-Norm only", decoded[index],
                                  schema::position(wanted, index), name, centroids[index]));
      }
      if (index % set.levels != 0 && decoded[index] < decoded[index - 1]) {
        group.damaged("decoded" + set.suffix, fmt::format("is not sorted: {} at {} follows {}", decoded[index],
                                                          schema::position(wanted, index), decoded[index - 1]));
      }
    }
    for (std::size_t begin = 0; begin < centroids.size(); begin += set.levels) {
      const auto from = static_cast<std::ptrdiff_t>(begin), to = static_cast<std::ptrdiff_t>(begin + set.levels);
      side.codebooks.push_back(
          {{centroids.begin() + from, centroids.begin() + to}, {decoded.begin() + from, decoded.begin() + to}});
    }
  }
}

void write_rounding(const h5::Group& group, const SideQuantizer& side) {
  const SideRecipe& recipe = side.recipe;
  if (recipe.widths == Widths::Pair) group.write("widths", channels_of(side), std::span(side.widths));
  if (recipe.rotation != Rotation::None)
    group.write("rotation_scale", channels_of(side), std::span(side.rotation_scale));
  if (recipe.rounding.uses_blocks()) group.write("coding_order", channels_of(side), std::span(side.feedback.order));
  if (recipe.rounding.feedback) group.write("feedback", blocks_of(side), std::span(side.feedback.updates));
  if (recipe.rounding.icm > 0) group.write("fisher", blocks_of(side), std::span(side.feedback.hessian));
}

void read_rounding(const h5::Group& group, SideQuantizer& side) {
  const SideRecipe& recipe = side.recipe;
  const h5::Shape channels = channels_of(side), blocks = blocks_of(side);
  const auto dim = static_cast<std::size_t>(side.head_dim);
  if (recipe.widths == Widths::Pair) {
    const std::vector<int> choices = width_choices(recipe);
    side.widths = read_small(group, "widths", channels, choices.front(), choices.back());
    for (std::size_t head = 0; head < side.widths.size(); head += dim) {
      int sum = 0;
      for (std::size_t channel = head; channel < head + dim; ++channel) sum += side.widths[channel];
      if (sum != head_vector_bits(recipe, side.head_dim)) {
        group.damaged("widths", fmt::format("has {} bits in kv head {}; every head vector has {}", sum, head / dim,
                                            head_vector_bits(recipe, side.head_dim)));
      }
    }
  }
  if (recipe.rotation != Rotation::None) {
    side.rotation_scale = read_finite(group, "rotation_scale", channels);
    require_positive(group, "rotation_scale", channels, side.rotation_scale, 0, 1);
  }
  if (recipe.rounding.uses_blocks()) {
    side.feedback.order = read_small(group, "coding_order", channels, 0, side.head_dim - 1);
    require_order(group, channels, side.feedback.order);
  }
  if (recipe.rounding.feedback) {
    side.feedback.updates = read_finite(group, "feedback", blocks);
    require_upper(group, blocks, side.feedback.updates);
  }
  if (recipe.rounding.icm > 0) {
    side.feedback.hessian = read_finite(group, "fisher", blocks);
    for (std::size_t head = 0; head < side.feedback.hessian.size(); head += dim * dim) {
      for (std::size_t channel = 0; channel < dim; ++channel)
        require_positive(group, "fisher", blocks, std::span<const float>(side.feedback.hessian),
                         head + channel * (dim + 1), side.feedback.hessian.size());
    }
    require_metric(group, blocks, side.feedback.hessian);
  }
}

}  // namespace kvq
