#pragma once
// Where each of many blocks begins, so that one can be read without those before it. What it takes is counted with the
// blocks: 17 bytes in all where they have one size, else a byte and 1 to 4 bytes for each length.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <kvq/coding/byte_io.h>

namespace kvq {

class BlockIndex {
 public:
  BlockIndex() : offsets_{0} {}

  void add(std::uint64_t block_bytes) { offsets_.push_back(offsets_.back() + block_bytes); }

  std::size_t blocks() const { return offsets_.size() - 1; }
  std::uint64_t begin(std::size_t block) const { return offsets_[block]; }
  std::uint64_t end(std::size_t block) const { return offsets_[block + 1]; }
  std::uint64_t payload_bytes() const { return offsets_.back(); }

  /// Appends a byte with the width of lengths, then lengths of that many bytes, little-endian. Width 0: all blocks but
  /// the last have one length; two lengths of 8 bytes, theirs and the last's. Nothing for no blocks. Throws Numeric for
  /// a block of 4 GiB and more among unequal ones.
  void write(std::vector<std::byte>& out) const;
  /// Reads the index of `blocks` blocks, which the rest of the reader's bytes must hold. Throws Io where they do not,
  /// and for what write() does not write.
  static BlockIndex read(ByteReader& reader, std::uint64_t blocks);

 private:
  std::vector<std::uint64_t> offsets_;
};

}  // namespace kvq
