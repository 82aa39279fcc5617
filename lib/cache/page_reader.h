#pragma once
// Pages back to numbers: exactly those that SideEncoder::decode gives for the same codes, but where a SideRotation is
// left to who multiplies or sums them: then what is decoded is still rotated, the exact tokens too. Those of turbo may
// differ from its codec's in the last bits.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <kvq/cache/block_pool.h>
#include <kvq/cache/code_rows.h>
#include <kvq/cache/head_row_reader.h>
#include <kvq/cache/page_loops.h>
#include <kvq/cache/side_rotation.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// What a page says beside its codes, made ready for several kv heads.
struct OpenPage {
  const std::uint8_t* page = nullptr;
  float zero[layout::kPageTokens], scale[layout::kPageTokens];  ///< with one range per token
  /// With several: `[ranges][64]`; with ranges of groups of tokens `[64 / group][kv_heads * head_dim]`.
  /// Formats of their own: scales `[kv_heads, scales][64]`.
  std::vector<float> zeros, scales;
  /// Exact values of a kv head, at `[channel][64]` of that head; overwrites what the codes say.
  struct Exact {
    std::int32_t at;
    float value;
  };
  std::vector<std::vector<Exact>> exact;  ///< by kv head, from first_head on
  int first_head = 0;
  std::vector<float> values;         ///< scratch: the outliers in the page
  std::vector<std::uint8_t> tokens;  ///< scratch: theirs
  std::vector<float> scratch;        ///< of HeadRowReader
};

/// Of one layer and side; const and thread-safe.
class SideDecoder {
 public:
  SideDecoder(const SideQuantizer& quantizer, const layout::SideShape& shape, const layout::SideParts& parts,
              const CodeRows& rows, const PageLoops& loops, const std::optional<SideRotation>& rotation);

  /// Reads kv heads first_head … last_head - 1 of the first `slots` tokens. `sinks`: exact tokens at the page's start,
  /// `[tokens, kv_heads, head_dim]` scaled fp16. Throws nothing but for memory.
  void open(const std::uint8_t* page, int slots, int first_head, int last_head, std::span<const std::uint16_t> sinks,
            const BlockPool& overflow, OpenPage& out) const;

  /// All slots of one kv head, `[head_dim][64]`. Throws Io for bytes that no encoder writes, where a codec decodes
  /// them.
  void decode(OpenPage& page, int kv_head, float* out) const;
  /// Tokens that are exact, `[tokens, kv_heads, head_dim]` scaled fp16, as decode() would give them.
  std::vector<float> exact_tokens(std::span<const std::uint16_t> tokens) const;

  /// The ranges of the group of tokens that `slot` is in, `[kv_heads * head_dim]`; axis channel-group.
  void group_ranges(const std::uint8_t* page, int slot, std::vector<float>& zero, std::vector<float>& scale) const;

  const layout::SideShape& shape() const { return shape_; }

 private:
  template <typename Visit>
  void for_each_outlier(const std::uint8_t* page, int slots, int first_head, int last_head, const BlockPool& overflow,
                        OpenPage& scratch, Visit visit) const;
  void open_ranges(const std::uint8_t* page, OpenPage& out) const;
  void decode_codes(const OpenPage& page, const std::uint8_t* codes, int kv_head, float* out) const;
  void decode_grouped_tokens(const OpenPage& page, int kv_head, const float* table, float* out) const;
  void decode_grouped_channels(const OpenPage& page, int kv_head, const float* table, float* out) const;
  void decode_runs(const OpenPage& page, int kv_head, float* out) const;
  void add_tables(const SideQuantizer& quantizer);
  void add_runs(const SideQuantizer& quantizer, const CodeRows& rows);

  /// Neighbouring channels of one width; widths=pair.
  struct Run {
    int first_channel, channels, bits;  ///< first_channel: within the head
    std::int64_t offset;                ///< of the first row, from the start of the codes
    std::size_t table;
  };

  layout::SideShape shape_;
  layout::SideParts parts_;
  const PageLoops* loops_;
  float from_stored_;
  int levels_, books_;
  int channels_of_range_;               ///< with ranges per token
  bool grouped_;                        ///< three codes together
  std::size_t table_stride_;            ///< at least 16
  std::vector<float> decoded_;          ///< `[books][table_stride_]`, levels repeated to fill them
  std::vector<std::vector<Run>> runs_;  ///< by kv head; none where all rows are alike
  std::optional<HeadRowReader> own_format_;
  std::optional<SideRotation> rotation_;
  std::vector<float> zero_, scale_;  ///< `[width]`, channel axis
  std::vector<std::uint16_t> head_of_channel_;
  std::vector<std::int32_t> row_of_channel_;  ///< where its row begins in a decoded kv head
};

}  // namespace kvq
