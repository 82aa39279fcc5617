#include <kvq/artifacts/internal/turbo_datasets.h>

#include <string>

#include <fmt/format.h>

#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

bool is_turbo(const Quantizer& quantizer, Side side) {
  return quantizer.recipe.quantized && quantizer.recipe.side(side).codebook == CodebookKind::Turbo;
}

h5::Shape square(int dim) { return {static_cast<std::uint64_t>(dim), static_cast<std::uint64_t>(dim)}; }

h5::Shape signs_shape(int dim) {
  return {static_cast<std::uint64_t>(OrthogonalTransform::hadamard_rounds(dim)), static_cast<std::uint64_t>(dim)};
}

void write_part(const h5::Group& group, const TurboPart& part) {
  const int dim = part.dim();
  const OrthogonalTransform& rotation = part.rotation;
  group.write(rotation.is_matrix() ? "rotation" : "signs", rotation.is_matrix() ? square(dim) : signs_shape(dim),
              std::span(rotation.table()));
  if (!part.levels.empty()) group.write("levels", {part.levels.size()}, std::span(part.levels));
  if (part.sketch) group.write("sketch", square(dim), std::span(part.sketch->table()));
}

std::vector<float> finite(const h5::Group& group, const std::string& name, const h5::Shape& shape) {
  std::vector<float> numbers = group.read_floats(name, shape);
  schema::require_finite(group, name, shape, numbers);
  return numbers;
}

OrthogonalTransform read_rotation(const h5::Group& group, bool hadamard, int dim) {
  const std::string name = hadamard ? "signs" : "rotation";
  std::vector<float> table = finite(group, name, hadamard ? signs_shape(dim) : square(dim));
  try {
    return hadamard ? OrthogonalTransform::from_signs(dim, std::move(table))
                    : OrthogonalTransform::from_matrix(dim, std::move(table));
  } catch (const Error& error) {
    group.damaged(name, error.what());
  }
}

TurboPart read_part(const h5::Group& group, const TurboOptions& options, int bits, int dim) {
  TurboPart part{bits, read_rotation(group, options.hadamard, dim), {}, std::nullopt};
  if (options.qjl) part.sketch = SignSketch::from_table(dim, finite(group, "sketch", square(dim)));
  if (part.code_bits() == 0) return part;
  const h5::Shape shape = {std::uint64_t{1} << part.code_bits()};
  part.levels = finite(group, "levels", shape);
  for (std::size_t index = 1; index < part.levels.size(); ++index) {
    if (part.levels[index] < part.levels[index - 1])
      group.damaged("levels", fmt::format("is not sorted: {} at {} follows {}", part.levels[index],
                                          schema::position(shape, index), part.levels[index - 1]));
  }
  return part;
}

h5::Shape outliers_shape(const SideQuantizer& side) {
  return {static_cast<std::uint64_t>(side.kv_heads), static_cast<std::uint64_t>(side.recipe.turbo.outlier_channels)};
}

}  // namespace

void write_turbo(const h5::Group& root, const Quantizer& quantizer) {
  if (!is_turbo(quantizer, Side::Key) && !is_turbo(quantizer, Side::Value)) return;
  const h5::Group turbo = root.create_group("turbo");
  for (const Side side : kSides) {
    if (!is_turbo(quantizer, side)) continue;
    const TurboTables& tables = *quantizer.layers.front().side(side).turbo;
    const h5::Group group = turbo.create_group(side_name(side));
    write_part(group, tables.parts[0]);
    if (tables.parts.size() > 1) write_part(group.create_group("outliers"), tables.parts[1]);
  }
}

TurboBySide read_turbo(const h5::Group& root, const Quantizer& quantizer) {
  TurboBySide result;
  for (const Side side : kSides) {
    if (!is_turbo(quantizer, side)) continue;
    const SideRecipe& recipe = quantizer.recipe.side(side);
    const TurboOptions& options = recipe.turbo;
    const h5::Group group = root.open_group("turbo").open_group(side_name(side));
    auto tables = std::make_shared<TurboTables>();
    tables->norm = options.norm;
    tables->parts.push_back(
        read_part(group, options, recipe.bits, quantizer.shape.head_dim - options.outlier_channels));
    if (options.outlier_channels > 0) {
      tables->parts.push_back(
          read_part(group.open_group("outliers"), options, options.outlier_bits, options.outlier_channels));
    }
    result[static_cast<std::size_t>(side)] = std::move(tables);
  }
  return result;
}

void write_outlier_channels(const h5::Group& group, const SideQuantizer& side) {
  if (side.recipe.turbo.outlier_channels > 0)
    group.write("outlier_channels", outliers_shape(side), std::span(side.outlier_channels));
}

void read_outlier_channels(const h5::Group& group, SideQuantizer& side) {
  if (side.recipe.turbo.outlier_channels == 0) return;
  const h5::Shape shape = outliers_shape(side);
  side.outlier_channels = group.read_ints("outlier_channels", shape);
  for (std::size_t index = 0; index < side.outlier_channels.size(); ++index) {
    const std::int32_t channel = side.outlier_channels[index];
    const std::int32_t before = index % shape[1] == 0 ? -1 : side.outlier_channels[index - 1];
    if (channel <= before || channel >= side.head_dim) {
      group.damaged("outlier_channels",
                    fmt::format("has {} at {}; channels from 0 to {} are possible, ascending within a kv head", channel,
                                schema::position(shape, index), side.head_dim - 1));
    }
  }
}

}  // namespace kvq
