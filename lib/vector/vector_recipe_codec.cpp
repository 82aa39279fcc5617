// Tables and codecs of vector recipes.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/coding/byte_io.h>
#include <kvq/core/error.h>
#include <kvq/vector/delta_codec.h>
#include <kvq/vector/entropy_codec.h>
#include <kvq/vector/low_rank_codec.h>
#include <kvq/vector/product_codec.h>
#include <kvq/vector/scalar_codec_fit.h>
#include <kvq/vector/vector_recipe.h>

namespace kvq {

namespace {

std::vector<float> choose_levels(const VectorRecipe& recipe, int bits, std::span<const float> rows, int dim) {
  return recipe.even_levels ? even_scalar_levels(rows, dim, recipe.scale, bits)
                            : fit_scalar_levels(rows, dim, recipe.scale, bits);
}

DeltaCodec delta_codec(const VectorRecipe& recipe, int dim, int exponent, std::vector<float> deltas,
                       std::vector<float> anchors) {
  return DeltaCodec(std::make_shared<ScalarCodec>(dim, recipe.scale, std::move(deltas), exponent),
                    std::make_shared<ScalarCodec>(dim, recipe.scale, std::move(anchors), exponent),
                    {recipe.anchor, static_cast<float>(recipe.threshold)});
}

int bits_of_anchors(const VectorRecipe& recipe) { return recipe.anchor_bits > 0 ? recipe.anchor_bits : recipe.bits; }

/// Deltas depend on how their predecessors were coded, hence on the levels that are sought: from levels for the rows
/// themselves, two rounds settle them.
std::vector<float> fit_delta_levels(const VectorRecipe& recipe, int dim, int exponent, std::span<const float> x,
                                    const std::vector<float>& anchors) {
  std::vector<float> levels = choose_levels(recipe, recipe.bits, x, dim);
  for (int round = 0; round < 2; ++round) {
    const std::vector<float> deltas = delta_codec(recipe, dim, exponent, levels, anchors).deltas_of(x);
    if (deltas.empty()) break;
    levels = choose_levels(recipe, recipe.bits, deltas, dim);
  }
  return levels;
}

void put_floats(std::vector<std::byte>& out, std::span<const float> values) {
  for (const float value : values) put_float(out, value);
}

std::vector<float> take_floats(ByteReader& reader, std::size_t count, const char* what) {
  if (count > reader.left() / 4) fail(ErrorKind::Io, fmt::format("tables of a vector codec: {} end too early", what));
  std::vector<float> values;
  for (std::size_t index = 0; index < count; ++index) {
    values.push_back(reader.real());
    if (!std::isfinite(values.back()))
      fail(ErrorKind::Io, fmt::format("tables of a vector codec: {} hold {}", what, values.back()));
  }
  return values;
}

void put_exponent(std::vector<std::byte>& out, int exponent) {
  put_number(out, static_cast<std::uint64_t>(exponent - kLeastScaleExponent), 2);
}

int take_exponent(ByteReader& reader) {
  const int exponent = static_cast<int>(reader.number(2)) + kLeastScaleExponent;
  if (exponent > kLargestScaleExponent)
    fail(ErrorKind::Io, fmt::format("tables of a vector codec: scales over 2^{}", exponent));
  return exponent;
}

std::vector<float> take_levels(ByteReader& reader, int bits) {
  std::vector<float> levels = take_floats(reader, std::size_t{1} << bits, "levels");
  if (!std::is_sorted(levels.begin(), levels.end()))
    fail(ErrorKind::Io, "tables of a vector codec: levels are not in ascending order");
  if (levels.front() < -1 || levels.back() > 1)
    fail(ErrorKind::Io, fmt::format("tables of a vector codec: levels from {} to {}, not within [-1, 1]",
                                    levels.front(), levels.back()));
  return levels;
}

EntropyTable take_entropy_table(ByteReader& reader, EntropyWord word) {
  const std::span<const std::byte> rest = reader.take(reader.left());
  std::size_t used = 0;
  EntropyTable table = word == EntropyWord::Rans ? EntropyTable(RansCoder::read_table(rest, used))
                                                 : EntropyTable(CanonicalHuffman::read_table(rest, used));
  if (used != rest.size()) fail(ErrorKind::Io, "tables of a vector codec: bytes behind the entropy table");
  return table;
}

std::unique_ptr<VectorCodec> take_product(ByteReader& reader, const VectorRecipe& recipe, int dim) {
  if (dim % recipe.subspaces != 0)
    fail(ErrorKind::Io, fmt::format("product codec: {} subspaces for {} channels", recipe.subspaces, dim));
  ProductBooks books;
  books.dim = dim;
  books.subspaces = recipe.subspaces;
  books.bits = recipe.bits;
  books.norm = recipe.norm;
  books.exponent = take_exponent(reader);
  const std::size_t channels = static_cast<std::size_t>(dim);
  books.channel_weights = take_floats(reader, channels, "channel weights");
  if (std::any_of(books.channel_weights.begin(), books.channel_weights.end(), [](float weight) { return weight < 0; }))
    fail(ErrorKind::Io, "tables of a vector codec: a channel weight is negative");
  books.centroids = take_floats(reader, channels << recipe.bits, "centroids");
  return std::make_unique<ProductCodec>(std::move(books));
}

}  // namespace

std::vector<std::byte> train_vector_tables(const VectorRecipe& recipe, int dim, const VectorSample& sample) {
  if (recipe.method != VectorMethod::Product && !(sample.row_weights.empty() && sample.channel_weights.empty()))
    fail(ErrorKind::Usage, fmt::format("vector recipe '{}': only pq is fitted with weights", short_form(recipe)));
  check_vector_dim(recipe, dim);
  std::vector<std::byte> tables;
  int exponent = 0;
  if (recipe.method != VectorMethod::Product) {
    exponent = scale_exponent(sample.x, dim, recipe.scale);
    put_exponent(tables, exponent);
  }
  switch (recipe.method) {
    case VectorMethod::Scalar: {
      const std::vector<float> levels = choose_levels(recipe, recipe.bits, sample.x, dim);
      put_floats(tables, levels);
      if (recipe.entropy == EntropyWord::None) break;
      const auto coder = recipe.entropy == EntropyWord::Rans ? EntropyCoder::Rans : EntropyCoder::Huffman;
      const EntropyTable table = train_entropy_table(ScalarCodec(dim, recipe.scale, levels, exponent), coder, sample.x);
      std::visit([&](const auto& entropy) { entropy.write_table(tables); }, table);
      break;
    }
    case VectorMethod::Delta: {
      const std::vector<float> anchors = choose_levels(recipe, bits_of_anchors(recipe), sample.x, dim);
      put_floats(tables, anchors);
      put_floats(tables, fit_delta_levels(recipe, dim, exponent, sample.x, anchors));
      break;
    }
    case VectorMethod::Product: {
      ProductOptions options;
      options.subspaces = recipe.subspaces;
      options.bits = recipe.bits;
      options.norm = recipe.norm;
      options.threads = sample.threads;
      const ProductBooks books = train_product(sample.x, dim, sample.row_weights, sample.channel_weights, options);
      put_exponent(tables, books.exponent);
      put_floats(tables, books.channel_weights);
      put_floats(tables, books.centroids);
      break;
    }
  }
  return tables;
}

std::unique_ptr<VectorCodec> make_codec(const VectorRecipe& recipe, int dim, std::span<const std::byte> tables) {
  ByteReader reader(tables, "tables of a vector codec");
  std::unique_ptr<VectorCodec> codec;
  switch (recipe.method) {
    case VectorMethod::Scalar: {
      const int exponent = take_exponent(reader);
      auto scalar = std::make_unique<ScalarCodec>(dim, recipe.scale, take_levels(reader, recipe.bits), exponent);
      if (recipe.entropy == EntropyWord::None) {
        codec = std::move(scalar);
      } else {
        EntropyTable table = take_entropy_table(reader, recipe.entropy);
        codec = std::make_unique<EntropyCodec>(std::move(scalar), std::move(table), recipe.page);
      }
      break;
    }
    case VectorMethod::Delta: {
      const int exponent = take_exponent(reader);
      std::vector<float> anchors = take_levels(reader, bits_of_anchors(recipe));
      codec = std::make_unique<DeltaCodec>(
          delta_codec(recipe, dim, exponent, take_levels(reader, recipe.bits), std::move(anchors)));
      break;
    }
    case VectorMethod::Product:
      codec = take_product(reader, recipe, dim);
      break;
  }
  if (reader.left() > 0) fail(ErrorKind::Io, fmt::format("tables of a vector codec: {} bytes too many", reader.left()));
  if (recipe.low_rank > 0)
    codec = std::make_unique<LowRankCodec>(std::move(codec),
                                           LowRankOptions{recipe.low_rank, recipe.page, recipe.factor_bits});
  return codec;
}

std::unique_ptr<VectorCodec> make_codec(const VectorRecipe& recipe, int dim, const VectorSample& sample) {
  return make_codec(recipe, dim, train_vector_tables(recipe, dim, sample));
}

}  // namespace kvq
