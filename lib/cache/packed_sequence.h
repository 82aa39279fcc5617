#pragma once
// The pages of one sequence in a shared pool: block tables, sinks, and nothing that moves when another sequence ends.
//
// Tokens of a side whose recipe lets them wait (recent, flush, groups of tokens) are kept in fp16 until they are
// settled, that is, coded and put into pages. What a query sees is what the cache held once its own token was appended:
// until release(), the tokens that the call's first query saw exact are there beside their codes.

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

  /// To be called when the queries of the appended tokens are answered: drops what no later query sees.
  void release(int layer);

  /// Forgets the tokens from `tokens` on, in every layer. What remains is as if they had never been there, but for
  /// tokens that would have waited longer without them: those stay coded. Tokens that come to a group of tokens which
  /// was cut that way are coded with the ranges that it has.
  void crop(std::int64_t tokens);

  /// Tokens of a layer; those of the last layer without an argument.
  std::int64_t length(int layer) const { return layers_[static_cast<std::size_t>(layer)].length; }
  std::int64_t length() const { return layers_.empty() ? 0 : layers_.back().length; }

  /// Tokens of a side that stand in pages, first ones that are exact included.
  std::int64_t settled(int layer, Side side) const;
  /// Those that the query at `position` sees so, or as exact first ones; the others are in waiting().
  std::int64_t settled_for(int layer, Side side, std::int64_t position) const;
  struct Waiting {
    std::int64_t first = 0;                ///< token
    std::span<const std::uint16_t> exact;  ///< `[tokens, kv_heads, head_dim]` scaled fp16
  };
  Waiting waiting(int layer, Side side) const;

  /// Bytes that the sequence holds: pages, overflow blocks, exact tokens, block tables. Read from the allocations.
  std::int64_t bytes() const;

  PackedPool& pool() const { return *pool_; }
  /// An empty page where all tokens are exact and none was taken.
  const std::uint8_t* page(int layer, std::int64_t index) const;
  /// The exact tokens at the start, `[min(sinks, length), kv_heads, head_dim]` scaled fp16.
  std::span<const std::uint16_t> sinks(int layer, Side side) const;
  /// The same bytes for the same content, wherever blocks happen to lie: pages with the blocks of their chains behind
  /// them and every link replaced by the place of its block in the chain, then the sinks, then the tokens that wait.
  std::vector<std::uint8_t> content(int layer) const;

 private:
  struct Layer {
    std::int64_t length = 0;
    std::int64_t settled[2] = {};         ///< by Side; `length` where nothing waits
    std::vector<std::uint32_t> pages;     ///< the block table
    std::vector<std::uint16_t> exact[2];  ///< sinks
    std::vector<std::uint16_t> tail[2];   ///< tokens tail_first … length - 1 of a side that waits, with room for all
    std::int64_t tail_first[2] = {};      ///< at most settled
  };
  /// Tokens of a call that are to be coded.
  struct Leaving {
    std::int64_t first = 0, end = 0;
    std::span<const float> x;
    std::vector<float> own;  ///< what `x` shows, where they have waited
  };
  Leaving leaving(int layer, Side side, std::span<const float> x, std::span<const std::uint16_t> exact) const;
  void write_pages(int layer, std::int64_t first_page, std::int64_t end_page, const Leaving (&leaving)[2], int threads);
  void keep_exact(int layer, Side side, std::vector<std::uint16_t> exact, std::int64_t tokens);
  void crop_layer(int layer, std::int64_t tokens);
  /// Tokens of a side for which there are pages.
  std::int64_t paged(Side side, std::int64_t settled) const;
  /// Takes out of the pages what is not settled.
  void trim_pages(int layer);
  /// Overflow blocks of one page and side, in order.
  std::vector<std::uint32_t> chain(int layer, Side side, std::size_t page) const;

  std::shared_ptr<PackedPool> pool_;
  std::vector<Layer> layers_;
};

}  // namespace kvq
