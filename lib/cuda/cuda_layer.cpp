#include <kvq/cuda/cuda_layer.h>

#include <algorithm>
#include <numeric>

#include <kvq/cache/side_rotation.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/head_rotation.h>
#include <kvq/quant/side_shape.h>

namespace kvq {

CudaLayer::SideMemory::SideMemory(const SideQuantizer& side, const layout::SideShape& shape, int sink_tokens,
                                  bool own_rows)
    : books(side.recipe.widths == Widths::Pair ? 1 : static_cast<std::int32_t>(side.codebooks.size())),
      exponent(side.exponent),
      levels(side.recipe.levels),
      widths(side.recipe.widths == Widths::Pair),
      keeps_outliers(side.recipe.outliers > 0.0) {
  if (own_rows) rows.upload(row_infos(side, shape));
  if (rounds_blocks(side.recipe)) rounding.emplace(side);
  if (!side.lower.empty()) {
    std::vector<float> zeros(side.lower.size()), scales(side.lower.size());
    for (std::size_t channel = 0; channel < zeros.size(); ++channel) {
      const ChannelAffine affine = channel_affine(side.lower[channel], side.upper[channel]);
      zeros[channel] = affine.zero, scales[channel] = affine.scale;
    }
    zero.upload(zeros), scale.upload(scales), lower.upload(side.lower), upper.upload(side.upper);
  }
  std::vector<float> decoded_levels, midpoints;
  for (const Codebook& book : side.codebooks) {
    decoded_levels.insert(decoded_levels.end(), book.decoded.begin(), book.decoded.end());
    const std::vector<float> between = book.boundaries();
    midpoints.insert(midpoints.end(), between.begin(), between.end());
  }
  decoded.upload(own_rows ? padded_codebooks(side) : decoded_levels), boundaries.upload(midpoints);
  sinks.reserve(std::max<std::int64_t>(1, std::int64_t{sink_tokens} * side.width()));
  cap = side.recipe.cap > 0.0 ? outlier_cap(side.recipe.cap, side.width()) : 0;
}

cuda::SideTables CudaLayer::SideMemory::decode_tables() const {
  return {zero.data(), scale.data(), decoded.data(), books, exponent, rows.data(), levels};
}

cuda::EncodeTables CudaLayer::SideMemory::encode_tables() const {
  return {lower.data(), upper.data(), boundaries.data(), books, exponent, cap, widths ? rows.data() : nullptr, levels};
}

CudaLayer::CudaLayer(const LayerQuantizer& quantizer, int sinks, int heads)
    : page_(page_layout(quantizer)),
      sinks_(sinks),
      heads_(heads),
      head_dim_(quantizer.value.head_dim),
      key_(quantizer.key, page_.key, sinks, has_own_rows(quantizer)),
      value_(quantizer.value, page_.value, sinks, has_own_rows(quantizer)) {
  if (quantizer.value.recipe.rotation == Rotation::None) return;
  const HeadRotation rotation = query_rotation(quantizer.value, heads);
  back_.upload(rotation.inverse_factors());
  rotation_block_ = rotation.block();
}

cuda::RoundTables CudaLayer::SideMemory::round_tables() const {
  if (!rounding) return {};
  cuda::RoundTables tables = rounding->tables();
  tables.zero = zero.data(), tables.scale = scale.data();
  if (keeps_outliers) tables.lower = lower.data(), tables.upper = upper.data();
  tables.exponent = exponent;
  return tables;
}

void CudaLayer::describe(cuda::RoundBlocks& round) const {
  round.kv_heads = page_.key.kv_heads, round.head_dim = head_dim_;
  round.key_tables = key_.round_tables(), round.value_tables = value_.round_tables();
}

cuda::Status CudaLayer::rotate_back(float* x, std::int64_t rows) const {
  return cuda::rotate_back(x, rows, heads_, head_dim_, rotation_block_, back_.data(), nullptr);
}

void CudaLayer::reserve(std::int64_t tokens) {
  const std::int64_t needed = layout::pages(length_ + tokens), there = block_table_.room();
  if (needed <= there) return;
  const std::int64_t room = std::max(needed, 2 * there);
  pages_.reserve(room * page_.bytes);
  std::vector<std::uint32_t> table(static_cast<std::size_t>(room));
  std::iota(table.begin(), table.end(), 0u);
  block_table_.upload(table);
}

void CudaLayer::describe(cuda::QuantizeAppend& append) const {
  append.page = page_;
  append.pages = pages_.data(), append.block_table = block_table_.data();
  append.block_table_stride = block_table_.room();
  append.key_tables = key_.encode_tables(), append.value_tables = value_.encode_tables();
  append.sinks = sinks_, append.sink_keys = key_.sinks.data(), append.sink_values = value_.sinks.data();
}

void CudaLayer::describe(cuda::PackedLayer& layer) const {
  layer.page = page_;
  layer.pages = pages_.data(), layer.block_table = block_table_.data();
  layer.sinks = sinks_, layer.sink_keys = key_.sinks.data(), layer.sink_values = value_.sinks.data();
  layer.key = key_.decode_tables(), layer.value = value_.decode_tables();
}

std::int64_t CudaLayer::bytes() const {
  const std::int64_t exact = std::min<std::int64_t>(sinks_, length_);
  return layout::pages(length_) * (page_.bytes + layout::kBlockTableBytes) +
         exact * (page_.key.width() + page_.value.width()) * layout::kHalfBytes;
}

std::vector<std::uint8_t> CudaLayer::download_pages() const {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(layout::pages(length_) * page_.bytes));
  if (!bytes.empty()) pages_.download(bytes);
  return bytes;
}

}  // namespace kvq
