#pragma once
// Decodes rows of codes of formats of their own (kvq/quant/head_rows.h), a kv head of a page at a time.

#include <cstdint>
#include <memory>
#include <vector>

#include <kvq/cache/page_loops.h>
#include <kvq/quant/head_coder.h>
#include <kvq/quant/quantizer.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

/// Of one layer and side; const and thread-safe.
class HeadRowReader {
 public:
  /// `rotated`: vectors of turbo are left rotated (side_rotation.h).
  HeadRowReader(const SideQuantizer& quantizer, const PageLoops& loops, bool rotated);

  /// Of one page: scales as floats, `[kv_heads, scales][64]`, from fp16 `[64][kv_heads, scales]`.
  void open_scales(const std::uint8_t* ranges, std::vector<float>& scales, std::vector<float>& scratch) const;

  /// `codes`: rows of the kv head; `ranges`, `scales`: of the page, as above. Writes `[head_dim][64]`. Throws Io for
  /// bytes that no encoder writes.
  void decode(const std::uint8_t* codes, const std::uint8_t* ranges, const float* scales, int kv_head, float* out,
              std::vector<float>& scratch) const;

 private:
  /// Neighbouring rows: level[code] times the scale.
  struct Levels {
    int first_row, rows, bits;
    std::int64_t offset;  ///< of the first row's bytes in the kv head's
    std::size_t table;    ///< in levels_
    int scale;            ///< of the kv head's; -1: none
  };

  int scales_of_head() const { return coder_.rows().scales(); }
  void add_levels(const SideQuantizer& quantizer);
  void add_turbo(const SideQuantizer& quantizer);
  void add_table(const std::vector<float>& levels);
  void decode_by_codec(const std::uint8_t* codes, const std::uint8_t* ranges, int kv_head, float* out) const;

  HeadCoder coder_;
  const PageLoops* loops_;
  int kv_heads_, head_dim_;
  float scale_unit_ = 1.0f;
  bool rotated_;
  std::vector<Levels> levels_runs_;                       ///< none: decoded by the codec, token by token
  std::vector<float> levels_;                             ///< each table repeated to 16 entries at least
  std::vector<std::shared_ptr<const TurboCodec>> turbo_;  ///< by kv head; turbo without a sketch
};

}  // namespace kvq
