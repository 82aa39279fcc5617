#pragma once
// Rows of codes in a page (kernels/layout/page.h, FORMAT.md): one for each channel, all alike, of widths of their own,
// or three codes together for 3, 5, 10 or 20 levels; or those of formats of their own (kvq/quant/head_rows.h). One of
// each layer and side; const and thread-safe.

#include <cstdint>
#include <vector>

#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

class CodeRows {
 public:
  /// Throws Mismatch for widths whose sum is not what every head vector has.
  CodeRows(const SideQuantizer& quantizer, const layout::SideShape& shape);

  /// Number `kv_head * rows of a kv head + row`; not with levels.
  struct Row {
    std::int32_t offset;  ///< bytes from the start of the codes
    std::int32_t bits;
  };
  const Row& row(int number) const { return rows_[static_cast<std::size_t>(number)]; }
  /// 3, 5, 10 or 20 where three codes stand together, else 0.
  int levels() const { return levels_; }
  /// Bytes of a kv head; head 0 begins at the start of the codes.
  std::int64_t head_bytes() const { return head_bytes_; }

  /// Adds codes `[count, rows]` of slots first_slot … to rows that hold 0 there.
  void write(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const;
  /// Makes the codes of slots `slots` … 0.
  void crop(std::uint8_t* codes, int slots) const;

 private:
  void write_single(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const;
  void write_grouped(std::uint8_t* codes, int first_slot, int count, const std::uint8_t* from) const;
  /// First bit of a channel's row, with levels.
  std::int64_t first_bit(int channel) const;

  int count_;  ///< rows of all kv heads
  int head_dim_, levels_;
  std::int64_t head_bytes_;
  std::vector<Row> rows_;
};

}  // namespace kvq
