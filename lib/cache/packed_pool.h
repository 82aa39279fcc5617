#pragma once
// What all sequences of a packed cache share: the quantizer made ready for encoding and decoding, and the memory that
// pages and overflow blocks come from.

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <kvq/cache/block_pool.h>
#include <kvq/cache/page_reader.h>
#include <kvq/cache/rope_angles.h>
#include <kvq/cache/side_coder.h>
#include <kvq/cache/side_rotation.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/quantizer.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

/// Throws what PackedPool throws where no cache of packed bits can be made of it, on whatever device; else returns it.
const Quantizer& check_packable(const Quantizer& quantizer);

/// Of the blocks that keys' outliers overflow into.
std::int64_t overflow_block_bytes(const KvShape& shape);

/// Memory is not thread-safe: append to, crop and end the sequences of a pool on one thread at a time.
class PackedPool {
 public:
  struct Layer {
    layout::PageLayout page;
    CodeRows rows[2];  ///< by Side
    SideCoder coders[2];
    SideDecoder decoders[2];
    std::optional<SideRotation> rotations[2];
    BlockPool pages;
    std::vector<std::uint8_t> blank;  ///< a page in which nothing is

    const layout::SideShape& shape(Side side) const { return side == Side::Key ? page.key : page.value; }
    const layout::SideParts& parts(Side side) const { return side == Side::Key ? page.key_parts : page.value_parts; }
    const CodeRows& code_rows(Side side) const { return rows[static_cast<int>(side)]; }
    const SideCoder& coder(Side side) const { return coders[static_cast<int>(side)]; }
    const SideDecoder& decoder(Side side) const { return decoders[static_cast<int>(side)]; }
    const std::optional<SideRotation>& rotation(Side side) const { return rotations[static_cast<int>(side)]; }
  };

  /// Throws Usage for recipes that packed_refusal() names, Mismatch when the quantizer's parts do not fit each other.
  /// `level`: for tests.
  explicit PackedPool(std::shared_ptr<const Quantizer> quantizer, SimdLevel level = best_simd_level());

  const Quantizer& quantizer() const { return *quantizer_; }
  const ExactWindow& window(Side side) const { return windows_[static_cast<int>(side)]; }
  const PageLoops& loops() const { return loops_; }
  Layer& layer(int index) { return layers_[static_cast<std::size_t>(index)]; }
  BlockPool& overflow() { return overflow_; }
  /// Of the layer's rotary embedding.
  RopeAngles& angles(int layer) { return quantizer_->rope.local_at(layer) ? local_angles_ : angles_; }

  /// Pages and overflow blocks that sequences hold now.
  std::int64_t taken_bytes() const;
  /// The same with what the pools hold in reserve.
  std::int64_t reserved_bytes() const;

 private:
  std::shared_ptr<const Quantizer> quantizer_;
  ExactWindow windows_[2];  ///< by Side
  const PageLoops& loops_;
  std::vector<Layer> layers_;
  BlockPool overflow_;
  RopeAngles angles_, local_angles_;
};

}  // namespace kvq
