#pragma once
// What rounding one side's head vectors on the GPU needs (kernels/cuda/round_blocks.h): the encoder's own tables, and
// the rows that the codes come to lie in.

#include <cstdint>

#include <kvq/cuda/device_array.h>
#include <kvq/kernels/cuda/code_rows.h>
#include <kvq/kernels/cuda/round_blocks.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Feedback, icm, widths, levels, rotation: anything but rounding channel by channel.
bool rounds_blocks(const SideRecipe& side);

/// Widths or levels on either side: rows of codes that are not all alike.
bool has_own_rows(const LayerQuantizer& layer);

/// Codebooks as the kernels read them where a layer has own rows: `[books, kRowLevels]`, those of several widths as
/// one.
std::vector<float> padded_codebooks(const SideQuantizer& side);

/// `[kv_heads, head_dim]`.
std::vector<cuda::RowInfo> row_infos(const SideQuantizer& side, const layout::SideShape& shape);

class SideRounding {
 public:
  explicit SideRounding(const SideQuantizer& side);

  /// Without ranges, thresholds and exponent, which the layer has for other uses.
  cuda::RoundTables tables() const;

 private:
  DeviceArray<float> inverse_, rotation_, boundaries_, decoded_, updates_, hessian_, inverse_diagonal_;
  DeviceArray<std::int32_t> most_boundaries_, order_;
  DeviceArray<std::uint8_t> book_;
  std::int32_t rotation_block_ = 0, books_ = 0, icm_ = 0;
};

}  // namespace kvq
