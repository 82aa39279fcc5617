#include <kvq/artifacts/quantizer_file.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/artifacts/internal/rounding_datasets.h>
#include <kvq/artifacts/internal/schema.h>
#include <kvq/artifacts/internal/tier_datasets.h>
#include <kvq/artifacts/internal/turbo_datasets.h>
#include <kvq/artifacts/internal/vector_datasets.h>
#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

constexpr std::int64_t kLongContext = 32768;  // where counted bits are forecast: DESIGN §2

h5::Shape channels_of(const KvShape& shape) {
  return {static_cast<std::uint64_t>(shape.kv_heads), static_cast<std::uint64_t>(shape.head_dim)};
}

void write_side(const h5::Group& group, const KvShape& shape, const SideQuantizer& side) {
  group.set("exponent", std::int64_t{side.exponent});
  group.set("outlier_rate", side.outlier_rate);
  if (stores_thresholds(side.recipe)) {
    group.write("lower", channels_of(shape), std::span(side.lower));
    group.write("upper", channels_of(shape), std::span(side.upper));
  }
  write_codebooks(group, side);
  write_rounding(group, side);
  write_outlier_channels(group, side);
  write_codec_tables(group, side);
  write_tiers(group, side);
}

SideQuantizer read_side(const h5::Group& group, const KvShape& shape, const SideRecipe& recipe,
                        const TierRecipe& tiers) {
  SideQuantizer side;
  side.recipe = recipe;
  side.kv_heads = shape.kv_heads;
  side.head_dim = shape.head_dim;
  const std::int64_t exponent = group.integer("exponent");
  if (exponent < -126 || exponent > 127)
    group.damaged("exponent", fmt::format("attribute is {}, -126 to 127 are possible", exponent));
  side.exponent = static_cast<int>(exponent);
  side.outlier_rate = group.number("outlier_rate");
  if (side.outlier_rate < 0 || side.outlier_rate > 1) {
    group.damaged("outlier_rate", fmt::format("attribute is {}, 0 to 1 are possible", side.outlier_rate));
  }
  if (stores_thresholds(recipe)) {
    side.lower = group.read_floats("lower", channels_of(shape));
    side.upper = group.read_floats("upper", channels_of(shape));
    schema::require_finite(group, "lower", channels_of(shape), side.lower);
    schema::require_finite(group, "upper", channels_of(shape), side.upper);
    schema::require_ordered(group, "lower", "upper", channels_of(shape), side.lower, side.upper);
  }
  read_codebooks(group, side);
  read_rounding(group, side);
  read_outlier_channels(group, side);
  read_codec_tables(group, side);
  read_tiers(group, tiers, side);
  return side;
}

/// An unquantized cache has no tables.
std::size_t stored_layers(const Quantizer& quantizer) {
  return quantizer.recipe.quantized ? static_cast<std::size_t>(quantizer.shape.layers) : 0;
}

}  // namespace

void write_quantizer(const std::filesystem::path& path, const QuantizerFile& file, bool force) {
  const Quantizer& quantizer = file.quantizer;
  if (quantizer.recipe.is_baseline())
    fail(ErrorKind::Usage, "recipe 'none' quantizes nothing, evicts nothing and needs no file");
  KVQ_ASSERT(quantizer.layers.size() == stored_layers(quantizer));
  AtomicFile target(path, force);
  h5::File output = h5::File::create(target.temporary(), path.string());
  {
    const h5::Group root = output.root();
    schema::write_provenance(root, "quantizer", file.provenance);
    schema::write_shape(root, quantizer.shape);
    schema::write_rope(root, quantizer.rope);
    root.set("recipe", short_form(quantizer.recipe));
    root.set("recipe_toml", recipe_to_toml(quantizer.recipe));
    root.set("bits_nominal", nominal_bits(quantizer.recipe, quantizer.shape.head_dim));
    if (!quantizer.recipe.is_oracle()) {
      root.set("bits_counted_32k",
               forecast_footprint(quantizer, kLongContext).bits_per_value(quantizer.shape, kLongContext));
      root.set("table_bytes", table_bytes(quantizer));
    }
    root.write("fingerprints", {file.fingerprints.size()}, std::span(file.fingerprints));
    write_turbo(root, quantizer);
    const h5::Group layers = root.create_group("layers");
    for (std::size_t layer = 0; layer < quantizer.layers.size(); ++layer) {
      const h5::Group group = layers.create_group(schema::layer_name(static_cast<int>(layer)));
      for (Side side : kSides) {
        const SideQuantizer& tensor = quantizer.layers[layer].side(side);
        KVQ_ASSERT(tensor.recipe == quantizer.recipe.side(side));
        write_side(group.create_group(side_name(side)), quantizer.shape, tensor);
      }
    }
    schema::write_complete(root);
  }
  output.close();
  target.commit();
}

QuantizerFile read_quantizer(const std::filesystem::path& path) {
  const h5::File input = h5::File::open(path);
  const h5::Group root = input.root();
  QuantizerFile file;
  file.provenance = schema::read_provenance(root, "quantizer");
  Quantizer& quantizer = file.quantizer;
  quantizer.shape = schema::read_shape(root);
  quantizer.rope = schema::read_rope(root, quantizer.shape);
  try {
    quantizer.recipe = recipe_from_toml(root.text("recipe_toml"), "recipe_toml");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Usage) throw;
    root.damaged("recipe_toml", fmt::format("attribute: {}", error.what()));
  }
  try {
    if (const std::string text = root.text("recipe"); !(parse_recipe(text) == quantizer.recipe))
      root.damaged("recipe", fmt::format("attribute says {}, recipe_toml {}", text, short_form(quantizer.recipe)));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Usage) throw;
    root.damaged("recipe", fmt::format("attribute: {}", error.what()));
  }
  if (quantizer.recipe.is_baseline())
    root.damaged("recipe_toml", "attribute says that nothing is quantized and nothing evicted");
  try {
    check_shape(quantizer.recipe, quantizer.shape.kv_heads, quantizer.shape.head_dim);
  } catch (const Error& error) {
    root.damaged("recipe_toml", fmt::format("attribute does not go with the file's shape: {}", error.what()));
  }
  // For readers that do not count for themselves, as we do.
  const auto counted = [&](const char* name, double told) {
    if (!(told >= 0 && std::isfinite(told))) root.damaged(name, fmt::format("attribute is {}, no count", told));
  };
  counted("bits_nominal", root.number("bits_nominal"));
  if (!quantizer.recipe.is_oracle()) {
    counted("bits_counted_32k", root.number("bits_counted_32k"));
    counted("table_bytes", static_cast<double>(root.integer("table_bytes")));
  }
  file.fingerprints = root.read_words("fingerprints", {h5::kAnyOrNone});
  if (!std::is_sorted(file.fingerprints.begin(), file.fingerprints.end()))
    root.damaged("fingerprints", "is not sorted");
  const TurboBySide turbo = read_turbo(root, quantizer);
  const h5::Group layers = root.open_group("layers");
  for (std::size_t layer = 0; layer < stored_layers(quantizer); ++layer) {
    const h5::Group group = layers.open_group(schema::layer_name(static_cast<int>(layer)));
    LayerQuantizer tensors;
    for (Side side : kSides) {
      tensors.side(side) = read_side(group.open_group(side_name(side)), quantizer.shape, quantizer.recipe.side(side),
                                     quantizer.recipe.tiers);
      tensors.side(side).turbo = turbo[static_cast<std::size_t>(side)];
    }
    quantizer.layers.push_back(std::move(tensors));
  }
  return file;
}

}  // namespace kvq
