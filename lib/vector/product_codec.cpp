#include <kvq/vector/product_codec.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/centroid_loops.h>
#include <kvq/vector/scalar_codec.h>

namespace kvq {

ProductCodec::ProductCodec(ProductBooks books) : books_(std::move(books)) {
  KVQ_ASSERT(books_.dim > 0 && books_.subspaces > 0 && books_.dim % books_.subspaces == 0);
  KVQ_ASSERT(books_.bits >= 1 && books_.bits <= 8);
  const std::size_t channels = static_cast<std::size_t>(books_.dim), centroids = std::size_t{1} << books_.bits;
  KVQ_ASSERT(books_.centroids.size() == centroids * channels && books_.channel_weights.size() == channels);
}

void ProductCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  constexpr std::size_t kRows = 64;
  const CentroidLoops& loops = centroid_loops();
  const std::size_t rows = static_cast<std::size_t>(check_rows(x, books_.dim));
  const std::size_t channels = static_cast<std::size_t>(books_.dim),
                    spaces = static_cast<std::size_t>(books_.subspaces);
  const std::size_t width = channels / spaces, centroids = std::size_t{1} << books_.bits;
  std::vector<float> by_channel(channels * kRows), distances(kRows);
  std::vector<std::uint32_t> owners(spaces * kRows);
  std::vector<std::uint16_t> norms(kRows);
  std::vector<std::uint8_t> codes(spaces);
  for (std::size_t first = 0; first < rows; first += kRows) {
    const std::size_t count = std::min(kRows, rows - first);
    for (std::size_t row = 0; row < count; ++row) {
      const auto values = x.subspan((first + row) * channels, channels);
      float inverse = 1;
      if (books_.norm) {
        norms[row] = half_row_scale(values, RowScale::Norm, books_.exponent, static_cast<std::int64_t>(first + row));
        const float norm = row_scale(norms[row], books_.exponent);
        inverse = norm > 0 ? 1.0f / norm : 0.0f;
      }
      for (std::size_t channel = 0; channel < channels; ++channel)
        by_channel[channel * kRows + row] = values[channel] * inverse;
    }
    for (std::size_t space = 0; space < spaces; ++space) {
      // Whole vectors of rows: what lies behind the last row is computed and not used.
      const PointsByChannel points = {by_channel.data() + space * width * kRows,
                                      (static_cast<std::int64_t>(count) + 7) / 8 * 8, static_cast<std::int64_t>(kRows),
                                      static_cast<int>(width), books_.channel_weights.data() + space * width};
      loops.nearest(points, books_.centroids.data() + space * centroids * width, static_cast<int>(centroids),
                    owners.data() + space * kRows, distances.data());
    }
    for (std::size_t row = 0; row < count; ++row) {
      if (books_.norm) put_half(norms[row], out);
      for (std::size_t space = 0; space < spaces; ++space)
        codes[space] = static_cast<std::uint8_t>(owners[space * kRows + row]);
      pack_bits(codes, books_.bits, out);
    }
  }
}

void ProductCodec::decode(std::span<const std::byte> bytes, std::span<float> x) const {
  const std::size_t channels = static_cast<std::size_t>(books_.dim),
                    spaces = static_cast<std::size_t>(books_.subspaces);
  KVQ_ASSERT(x.size() % channels == 0);
  const std::size_t rows = x.size() / channels, width = channels / spaces, centroids = std::size_t{1} << books_.bits;
  const std::size_t scale_bytes = books_.norm ? 2 : 0, row_bytes = scale_bytes + packed_bytes(spaces, books_.bits);
  if (bytes.size() != rows * row_bytes)
    fail(ErrorKind::Io, fmt::format("{} bytes for {} rows of {} bytes", bytes.size(), rows, row_bytes));
  std::vector<std::uint8_t> codes(spaces);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto from = bytes.subspan(row * row_bytes, row_bytes);
    float scale = 1;
    if (books_.norm) {
      const std::uint16_t half = get_half(from);
      if (half >= 0x7c00u) fail(ErrorKind::Io, fmt::format("norm of row {}: fp16 bits {:#06x}", row, half));
      scale = row_scale(half, books_.exponent);
    }
    unpack_bits(from.subspan(scale_bytes), books_.bits, codes);
    for (std::size_t space = 0; space < spaces; ++space) {
      const float* centroid = books_.centroids.data() + (space * centroids + codes[space]) * width;
      for (std::size_t channel = 0; channel < width; ++channel)
        x[row * channels + space * width + channel] = centroid[channel] * scale;
    }
  }
}

}  // namespace kvq
