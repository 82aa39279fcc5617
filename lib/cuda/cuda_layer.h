#pragma once
// One layer of one sequence in GPU memory: its pages, its exact first tokens, and the tables that encoding and decoding
// need.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvq/cuda/device_array.h>
#include <kvq/cuda/side_rounding.h>
#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/cuda/quantize_append.h>
#include <kvq/kernels/cuda/round_blocks.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

class CudaLayer {
 public:
  /// `heads`: query heads.
  CudaLayer(const LayerQuantizer& quantizer, int sinks, int heads);

  const layout::PageLayout& page() const { return page_; }
  std::int64_t length() const { return length_; }
  void reset() { length_ = 0; }

  /// Makes room for `tokens` more; the sequence's pages may move.
  void reserve(std::int64_t tokens);
  /// Fills in what is this layer's; pointers are good until the next reserve().
  void describe(cuda::QuantizeAppend& append) const;
  /// Nothing to round where neither side asks for it.
  bool rounds() const { return key_.rounding.has_value() || value_.rounding.has_value(); }
  void describe(cuda::RoundBlocks& round) const;
  bool rotates_values() const { return back_.room() > 0; }
  /// `[rows, heads, head_dim]` of device memory, attention's sums of rotated values, to those of values.
  cuda::Status rotate_back(float* x, std::int64_t rows) const;
  void describe(cuda::PackedLayer& layer) const;
  void appended(std::int64_t tokens) { length_ += tokens; }

  /// Pages, block table and exact tokens; overflow blocks are not the layer's own.
  std::int64_t bytes() const;
  /// The pages as they are, for tests.
  std::vector<std::uint8_t> download_pages() const;

 private:
  struct SideMemory {
    DeviceArray<float> zero, scale, lower, upper, decoded, boundaries;
    DeviceArray<std::uint16_t> sinks;
    DeviceArray<cuda::RowInfo> rows;
    std::int32_t books = 1, exponent = 0, cap = 0, levels = 0;
    std::optional<SideRounding> rounding;
    bool widths = false;  ///< rows have widths of their own
    bool keeps_outliers = false;

    SideMemory(const SideQuantizer& side, const layout::SideShape& shape, int sinks, bool own_rows);
    cuda::SideTables decode_tables() const;
    cuda::EncodeTables encode_tables() const;
    cuda::RoundTables round_tables() const;
  };
  layout::PageLayout page_;
  int sinks_, heads_, head_dim_, rotation_block_ = 1;
  SideMemory key_, value_;
  DeviceArray<std::uint8_t> pages_;
  DeviceArray<std::uint32_t> block_table_;
  DeviceArray<float> back_;  ///< `[heads, head_dim]`
  std::int64_t length_ = 0;
};

}  // namespace kvq
