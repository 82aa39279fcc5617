#include <algorithm>

#include <fmt/format.h>

#include <kvq/vector/bit_rows.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

namespace {

TurboPart make_part(const TurboOptions& options, int bits, int dim, std::uint64_t stream) {
  // Four streams of numbers for each seed: rotation and sketch of either part.
  const std::uint64_t seed = static_cast<std::uint64_t>(options.seed) * 4 + stream;
  TurboPart part{bits,
                 options.hadamard ? OrthogonalTransform::hadamard(dim, seed) : OrthogonalTransform::random(dim, seed),
                 {},
                 std::nullopt};
  if (options.qjl) part.sketch = SignSketch::random(dim, seed + 1);
  if (part.code_bits() > 0) {
    const auto levels = marginal_codebook(options.marginal, dim, part.code_bits());
    part.levels.assign(levels.begin(), levels.end());
  }
  return part;
}

/// Codes and signs, each in whole bytes.
std::int64_t part_bytes(int dim, int bits, bool sketch) {
  const auto count = static_cast<std::size_t>(dim);
  return static_cast<std::int64_t>(sketch ? packed_bytes(count, bits - 1) + packed_bytes(count, 1)
                                          : packed_bytes(count, bits));
}

}  // namespace

std::int64_t TurboPart::code_bytes() const { return part_bytes(dim(), bits, sketch.has_value()); }

int TurboTables::dim() const {
  int sum = 0;
  for (const TurboPart& part : parts) sum += part.dim();
  return sum;
}

std::int64_t TurboTables::row_bytes() const {
  std::int64_t sum = 0;
  for (const TurboPart& part : parts) sum += 2 * part.norms() + part.code_bytes();
  return sum;
}

std::int64_t TurboTables::numbers() const {
  std::int64_t sum = 0;
  for (const TurboPart& part : parts) {
    sum += static_cast<std::int64_t>(part.rotation.table().size() + part.levels.size());
    if (part.sketch) sum += static_cast<std::int64_t>(part.sketch->table().size());
  }
  return sum;
}

void check_turbo_dim(const TurboOptions& options, int dim) {
  if (options.outlier_channels > 0 && options.outlier_channels > dim - 2) {
    fail(ErrorKind::Usage,
         fmt::format("outlier-channels={} leave {} of a head's {} channels: a direction needs 2 at least",
                     options.outlier_channels, std::max(dim - options.outlier_channels, 0), dim));
  }
  const auto check = [&](int part, const char* what) {
    if (part < 2) {
      fail(ErrorKind::Usage, fmt::format("{} of {} channels of a head: a direction needs 2 at least", what, part));
    }
    if (options.hadamard && !OrthogonalTransform::has_hadamard(part)) {
      fail(ErrorKind::Usage,
           fmt::format("rotation=hadamard mixes powers of two from 8 on, and none of them divides {} {} "
                       "channels; rotation=random turns any number",
                       what, part));
    }
  };
  if (options.outlier_channels > 0) check(options.outlier_channels, "outlier-channels:");
  check(dim - options.outlier_channels, options.outlier_channels > 0 ? "the other" : "all");
}

TurboTables make_turbo_tables(const TurboOptions& options, int bits, int dim) {
  check_turbo_dim(options, dim);
  TurboTables tables{{}, options.norm};
  tables.parts.push_back(make_part(options, bits, dim - options.outlier_channels, 0));
  if (options.outlier_channels > 0)
    tables.parts.push_back(make_part(options, options.outlier_bits, options.outlier_channels, 2));
  return tables;
}

}  // namespace kvq
