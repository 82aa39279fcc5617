#include <kvq/formats/raw_tensor.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/checked_math.h>
#include <kvq/formats/printable.h>

namespace kvq {
namespace {

// Decoded values are checked while they are still in the first-level cache; a multiple of every block length.
constexpr std::size_t kChunk = 4096;

/// One or over the whole range instead of a branch per value, so that it vectorises.
bool all_finite(std::span<const float> values) {
  std::uint32_t bad = 0;
  for (const float value : values) {
    // Exponent all ones carries into the sign bit.
    bad |= (std::bit_cast<std::uint32_t>(value) & 0x7fffffffu) + 0x00800000u;
  }
  return (bad & 0x80000000u) == 0;
}

std::string position_text(std::span<const std::int64_t> shape, std::int64_t flat) {
  std::vector<std::int64_t> position(shape.size());
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    position[dim] = flat % shape[dim];
    flat /= shape[dim];
  }
  return shape_text(position);
}

[[noreturn]] void not_finite(const std::string& file, const RawTensor& tensor, std::int64_t first,
                             std::span<const float> values) {
  const auto at = std::find_if_not(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
  const std::int64_t flat = first + (at - values.begin());
  fail(ErrorKind::Format, fmt::format("{}: tensor {} holds {} at {} (type {}, shape {}); weights must be finite", file,
                                      printable(tensor.info.name), *at, position_text(tensor.info.shape, flat),
                                      tensor.info.dtype, shape_text(tensor.info.shape)));
}

void decode_blocks(const RawTensor& tensor, std::size_t first_block, std::span<float> out) {
  const GgmlTypeTraits& traits = *ggml_type_traits(static_cast<std::uint32_t>(tensor.type));
  const auto block_bytes = static_cast<std::size_t>(traits.block_bytes);
  const std::size_t blocks = out.size() / static_cast<std::size_t>(traits.block_values);
  dequantize(tensor.type, tensor.bytes.subspan(first_block * block_bytes, blocks * block_bytes), out);
}

}  // namespace

void read_tensor_rows(const std::string& file, const RawTensor& tensor, std::int64_t first_row, std::int64_t rows,
                      std::span<float> out) {
  const std::span<const std::int64_t> shape = tensor.info.shape;
  const std::int64_t row_count = shape.empty() ? 1 : shape[0];
  const std::int64_t row_size = shape.empty() ? 1 : *checked_elements(shape.subspan(1));
  KVQ_ASSERT(first_row >= 0 && rows >= 0 && rows <= row_count && first_row <= row_count - rows);
  KVQ_ASSERT(out.size() == static_cast<std::size_t>(rows * row_size));

  const auto block = static_cast<std::size_t>(ggml_type_traits(static_cast<std::uint32_t>(tensor.type))->block_values);
  auto at = static_cast<std::size_t>(first_row * row_size);
  const std::size_t end = at + out.size();
  std::vector<float> edge;
  while (at < end) {
    const std::size_t inside = at % block;
    std::size_t count = std::min(kChunk, end - at);
    const std::span<float> part = out.subspan(out.size() - (end - at));
    if (inside != 0 || count < block) {  // a 1-D tensor may be read from the middle of a block
      count = std::min(block - inside, end - at);
      edge.resize(block);
      decode_blocks(tensor, at / block, edge);
      std::copy_n(edge.begin() + static_cast<std::ptrdiff_t>(inside), count, part.begin());
    } else {
      count -= count % block;
      decode_blocks(tensor, at / block, part.first(count));
    }
    if (!all_finite(part.first(count))) not_finite(file, tensor, static_cast<std::int64_t>(at), part.first(count));
    at += count;
  }
}

}  // namespace kvq
