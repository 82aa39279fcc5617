#pragma once
// Memory in blocks of one size. Blocks are numbered, so that 4 bytes say where one is, and never move.

#include <cstdint>
#include <memory>
#include <vector>

namespace kvq {

/// Grows by whole chunks; what is given back is taken again before it grows. Not thread-safe, but blocks may be read
/// and written on any thread.
class BlockPool {
 public:
  /// Readable (and meaningless) bytes behind the last block of a chunk: vector loads may run over the end.
  static constexpr std::int64_t kReadable = 64;

  BlockPool(std::int64_t block_bytes, std::int64_t blocks_per_chunk);

  /// A block of zeros. Throws Memory.
  std::uint32_t take();
  void give_back(std::uint32_t block);

  std::uint8_t* data(std::uint32_t block) {
    return chunks_[block / blocks_per_chunk_].get() + block % blocks_per_chunk_ * block_bytes_;
  }
  const std::uint8_t* data(std::uint32_t block) const { return const_cast<BlockPool*>(this)->data(block); }

  std::int64_t block_bytes() const { return static_cast<std::int64_t>(block_bytes_); }
  std::int64_t taken() const { return made_ - static_cast<std::int64_t>(free_.size()); }
  /// What the pool holds from the system, free blocks included.
  std::int64_t reserved_bytes() const;

 private:
  struct Release {
    void operator()(std::uint8_t* memory) const;
  };
  std::uint64_t block_bytes_, blocks_per_chunk_;
  std::vector<std::unique_ptr<std::uint8_t[], Release>> chunks_;
  std::int64_t made_ = 0;            ///< blocks handed out at least once
  std::vector<std::uint32_t> free_;  ///< given back; the last one is taken first
};

}  // namespace kvq
