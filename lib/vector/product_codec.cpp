#include <kvq/vector/product_codec.h>

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/scalar_codec.h>

namespace kvq {

ProductCodec::ProductCodec(ProductBooks books) : books_(std::move(books)) {
  KVQ_ASSERT(books_.dim > 0 && books_.subspaces > 0 && books_.dim % books_.subspaces == 0);
  KVQ_ASSERT(books_.bits >= 1 && books_.bits <= 8);
  const std::size_t channels = static_cast<std::size_t>(books_.dim), centroids = std::size_t{1} << books_.bits;
  KVQ_ASSERT(books_.centroids.size() == centroids * channels && books_.channel_weights.size() == channels);
  const std::size_t width = channels / static_cast<std::size_t>(books_.subspaces);
  by_channel_.resize(books_.centroids.size());
  for (std::size_t space = 0; space < channels / width; ++space) {
    for (std::size_t centroid = 0; centroid < centroids; ++centroid) {
      for (std::size_t channel = 0; channel < width; ++channel)
        by_channel_[(space * width + channel) * centroids + centroid] =
            books_.centroids[(space * centroids + centroid) * width + channel];
    }
  }
}

void ProductCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  const std::size_t rows = static_cast<std::size_t>(check_rows(x, books_.dim));
  const std::size_t channels = static_cast<std::size_t>(books_.dim),
                    spaces = static_cast<std::size_t>(books_.subspaces);
  const std::size_t width = channels / spaces, centroids = std::size_t{1} << books_.bits;
  std::vector<std::uint8_t> codes(spaces);
  std::vector<float> distances(centroids);
  for (std::size_t row = 0; row < rows; ++row) {
    const auto values = x.subspan(row * channels, channels);
    float inverse = 1;
    if (books_.norm) {
      const std::uint16_t half =
          half_row_scale(values, RowScale::Norm, books_.exponent, static_cast<std::int64_t>(row));
      put_half(half, out);
      const float norm = row_scale(half, books_.exponent);
      inverse = norm > 0 ? 1.0f / norm : 0.0f;
    }
    for (std::size_t space = 0; space < spaces; ++space) {
      std::fill(distances.begin(), distances.end(), 0.0f);
      for (std::size_t channel = space * width; channel < (space + 1) * width; ++channel) {
        const float value = values[channel] * inverse, weight = books_.channel_weights[channel];
        const float* positions = by_channel_.data() + channel * centroids;
        for (std::size_t centroid = 0; centroid < centroids; ++centroid) {
          const float difference = value - positions[centroid];
          distances[centroid] += weight * difference * difference;
        }
      }
      codes[space] =
          static_cast<std::uint8_t>(std::min_element(distances.begin(), distances.end()) - distances.begin());
    }
    pack_bits(codes, books_.bits, out);
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
