#pragma once
// Compression of a plain matrix of floats: one call each way, one self-contained string of bytes between.
// docs/compress.md has an example.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <kvq/coding/block_index.h>
#include <kvq/vector/vector_codec.h>

namespace kvq {

/// Bytes, all numbers little-endian: "KVQT"; version 1 (u32); rows (u64); dim (u32); length of the recipe (u32) and the
/// recipe; length of its tables (u64) and the tables (kvq/vector/vector_recipe.h); the index of runs of rows
/// (kvq/coding/block_index.h); the runs; SHA-256 of all before (32 bytes).
class CompressedTensor {
 public:
  /// Takes what bytes() gave. Throws Io for anything else: a wrong checksum above all, so that no damaged byte goes
  /// unseen.
  explicit CompressedTensor(std::vector<std::byte> bytes);

  std::span<const std::byte> bytes() const { return bytes_; }
  std::int64_t rows() const { return rows_; }
  int dim() const { return dim_; }
  const std::string& recipe() const { return recipe_; }
  /// Everything, header, tables and checksum too, over rows · dim; 0 without values.
  double bits_per_value() const;
  /// The share of the runs alone: what one more row like these would cost.
  double payload_bits_per_value() const;

 private:
  friend std::vector<float> decompress_rows(const CompressedTensor& tensor, std::int64_t first, std::int64_t count);

  std::vector<std::byte> bytes_;
  std::int64_t rows_ = 0;
  int dim_ = 0;
  std::string recipe_;
  std::shared_ptr<const VectorCodec> codec_;
  BlockIndex index_;
  std::size_t payload_begin_ = 0;
};

/// `x`: `[rows, dim]`, dim from 1 to 65536. `recipe`: words of kvq/vector/vector_recipe.h. Tables are fitted to at most
/// 16384 of the rows. The same bytes for any number of threads. Throws Usage for the recipe or where `x` has another
/// size, Numeric naming row and channel for values that are not finite or too large.
CompressedTensor compress(std::span<const float> x, std::int64_t rows, int dim, const std::string& recipe,
                          int threads = 1);

/// `[rows, dim]`
std::vector<float> decompress(const CompressedTensor& tensor);

/// Rows [first, first + count); decodes the runs that hold them, 128 rows or one block of the codec each. Throws Usage
/// for rows that are not there.
std::vector<float> decompress_rows(const CompressedTensor& tensor, std::int64_t first, std::int64_t count);

}  // namespace kvq
