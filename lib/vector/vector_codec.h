#pragma once
// Codecs of head vectors: what TurboQuant and the extensions of KVQuant++ do to the rows of a matrix, with the bytes
// that it really takes. A cache uses one for each layer, side and kv head; kvq/vector/compress.h uses them on plain
// tensors.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvq {

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
};

}  // namespace kvq
