#pragma once
// Pages back to numbers: exactly those that SideEncoder::decode gives for the same codes.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/cache/block_pool.h>
#include <kvq/cache/page_loops.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// What a page says beside its codes, made ready for several kv heads.
struct OpenPage {
  const std::uint8_t* page = nullptr;
  float zero[layout::kPageTokens], scale[layout::kPageTokens];  ///< with ranges per token
  /// Exact values of a kv head, at `[channel][64]` of that head; overwrites what the codes say.
  struct Exact {
    std::int32_t at;
    float value;
  };
  std::vector<std::vector<Exact>> exact;  ///< by kv head, from first_head on
  int first_head = 0;
  std::vector<float> values;  ///< scratch: the outliers in the page
};

/// Of one layer and side; const and thread-safe.
class SideDecoder {
 public:
  SideDecoder(const SideQuantizer& quantizer, const layout::SideShape& shape, const layout::SideParts& parts,
              const PageLoops& loops);

  /// Reads kv heads first_head … last_head - 1 of the first `slots` tokens. `sinks`: exact tokens at the page's start,
  /// `[tokens, kv_heads, head_dim]` scaled fp16. Throws nothing but for memory.
  void open(const std::uint8_t* page, int slots, int first_head, int last_head, std::span<const std::uint16_t> sinks,
            const BlockPool& overflow, OpenPage& out) const;

  /// All slots of one kv head, `[head_dim][64]`.
  void decode(const OpenPage& page, int kv_head, float* out) const;

  const layout::SideShape& shape() const { return shape_; }

 private:
  template <typename Visit>
  void for_each_outlier(const std::uint8_t* page, int slots, const BlockPool& overflow, std::vector<float>& values,
                        Visit visit) const;

  layout::SideShape shape_;
  layout::SideParts parts_;
  const PageLoops* loops_;
  float from_stored_;
  int levels_, books_;
  std::vector<float> decoded_;       ///< `[books][at least 16]`, repeated to 16
  std::vector<float> zero_, scale_;  ///< `[width]`, channel axis
  std::vector<std::uint16_t> head_of_channel_;
  std::vector<std::int32_t> row_of_channel_;  ///< where its row begins in a decoded kv head
};

}  // namespace kvq
