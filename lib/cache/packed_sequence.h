#pragma once
// The pages of one sequence in a shared pool: block tables, sinks, and nothing that moves when another sequence ends.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <kvq/cache/packed_pool.h>
#include <kvq/quant/footprint.h>

namespace kvq {

/// Not thread-safe.
class PackedSequence {
 public:
  explicit PackedSequence(std::shared_ptr<PackedPool> pool);
  /// Gives all memory back.
  ~PackedSequence();
  PackedSequence(PackedSequence&&) noexcept = default;
  PackedSequence& operator=(PackedSequence&&) noexcept;

  /// Appends tokens to one layer: `[tokens, kv_heads, head_dim]` finite fp32, keys before RoPE, or after it where the
  /// recipe says so. On `threads` threads. The content does not depend on how tokens were cut into calls. Throws
  /// Numeric for an exact value that overflows, naming layer, side, token and channel, and Memory; then the layer is as
  /// before.
  void append(int layer, std::span<const float> key, std::span<const float> value, int threads);

  /// Forgets the tokens from `tokens` on, in every layer: what remains is as if they had never been there.
  void crop(std::int64_t tokens);

  /// Tokens of a layer; those of the last layer without an argument.
  std::int64_t length(int layer) const { return layers_[static_cast<std::size_t>(layer)].length; }
  std::int64_t length() const { return layers_.empty() ? 0 : layers_.back().length; }

  /// Bytes that the sequence holds: pages, overflow blocks, exact tokens, block tables. Read from the allocations.
  std::int64_t bytes() const;

  PackedPool& pool() const { return *pool_; }
  const std::uint8_t* page(int layer, std::int64_t index) const;
  /// The exact tokens at the start, `[min(sinks, length), kv_heads, head_dim]` scaled fp16.
  std::span<const std::uint16_t> sinks(int layer, Side side) const;
  /// The same bytes for the same content, wherever blocks happen to lie: pages with the blocks of their chains behind
  /// them and every link replaced by the place of its block in the chain, then the sinks.
  std::vector<std::uint8_t> content(int layer) const;

 private:
  struct Layer {
    std::int64_t length = 0;
    std::vector<std::uint32_t> pages;     ///< the block table
    std::vector<std::uint16_t> exact[2];  ///< by Side
  };
  void append_sinks(int layer, Side side, std::span<const float> tokens);
  void append_pages(int layer, std::span<const float> key, std::span<const float> value, int threads);
  void crop_layer(int layer, std::int64_t tokens);
  /// Overflow blocks of one page and side, in order.
  std::vector<std::uint32_t> chain(int layer, Side side, std::size_t page) const;

  std::shared_ptr<PackedPool> pool_;
  std::vector<Layer> layers_;
};

}  // namespace kvq
