#pragma once
// Codecs of head vectors: what TurboQuant and the extensions of KVQuant++ do to the rows of a matrix, with the bytes
// that it really takes. A cache uses one for each layer, side and kv head; kvq/vector/compress.h uses them on plain
// tensors.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvq/core/error.h>

namespace kvq {

/// Numeric error: a row whose scale does not fit its format.
class VectorOverflow : public Error {
 public:
  /// `what`: the message without the row's number.
  VectorOverflow(std::int64_t overflow_row, int overflow_channel, float overflow_value, float overflow_limit,
                 std::string what);
  /// The same, of a row that stands `rows` further on.
  VectorOverflow moved(std::int64_t rows) const { return {row + rows, channel, value, limit, reason}; }

  std::int64_t row;
  int channel;  ///< of the largest magnitude in the row
  float value;
  float limit;  ///< largest scale that fits
  std::string reason;
};

/// A block that fills as its rows come, the newest one of a cache.
class OpenBlock {
 public:
  virtual ~OpenBlock() = default;
  /// The next rows, finite. `decoded`, as long as `x` (the same memory, if need be) or empty: what decode() will give
  /// for them, whatever follows. Throws VectorOverflow, rows counted within the block; the block is lost then.
  virtual void append(std::span<const float> x, std::span<float> decoded) = 0;
  virtual std::int64_t rows() const = 0;
  /// Appends the bytes that encode() makes of all rows of the block.
  virtual void close(std::vector<std::byte>& out) const = 0;
};

/// Const and thread-safe after construction; the same rows give the same bytes on every machine.
class VectorCodec {
 public:
  virtual ~VectorCodec() = default;

  /// Channels of a row (head_dim).
  virtual int dim() const = 0;

  /// Rows that are coded together and can be read without the others, from row 0 on: 1 where every row stands by
  /// itself, the distance of anchors for delta coding, the page for factors or streams that many rows share.
  virtual std::int64_t block_rows() const { return 1; }

  /// `x`: `[rows, dim]`, finite, rows from a multiple of block_rows() on. Appends their bytes to `out`, blocks one
  /// behind the other, each padded to whole bytes. Throws Numeric naming row and channel for a number that the format
  /// cannot hold.
  virtual void encode(std::span<const float> x, std::vector<std::byte>& out) const = 0;

  /// The inverse: `bytes` as encode() made them for as many rows. Throws Io when they are not (too few, too many, or
  /// what no encoder writes), and never reads outside.
  virtual void decode(std::span<const std::byte> bytes, std::span<float> x) const = 0;

  /// A block without rows, for which the codec must outlive it. Here for codecs whose rows stand by themselves, and for
  /// those that need all rows of a block at once, in a single append().
  virtual std::unique_ptr<OpenBlock> open_block() const;
};

}  // namespace kvq
