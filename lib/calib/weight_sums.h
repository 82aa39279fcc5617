#pragma once
// Σ g² of all weights of the blocks over the sequences that are finished: the whole state of a collection, so that its
// journal is never larger than two of these and memory holds one matrix at a time. fp32; private to the machine that
// writes it, gone once the file it is for is complete.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <kvq/calib/part_file.h>
#include <kvq/core/block_matrix.h>

namespace kvq {

class WeightSumsWriter {
 public:
  /// Matrices come in any order, each once. `identity`: what the journal belongs to, 64 hex digits. `sequences`: how
  /// many the sums are over. Throws Io.
  WeightSumsWriter(const std::filesystem::path& target, const BlockShape& shape, const std::string& identity,
                   std::int64_t sequences);

  void write(int layer, BlockMatrix matrix, std::span<const float> sums);
  /// `losses` of all sequences so far.
  void commit(std::span<const double> losses);

 private:
  PartWriter file_;
  BlockShape shape_;
  std::string identity_;
  std::int64_t sequences_;
  PieceSums sums_;
};

class WeightSumsReader {
 public:
  /// Throws Io when the file is not what a writer with the same arguments committed.
  WeightSumsReader(const std::filesystem::path& path, const BlockShape& shape, const std::string& identity,
                   std::int64_t sequences);

  const std::vector<double>& losses() const { return losses_; }
  /// Throws Io, also where the file is damaged.
  void read(int layer, BlockMatrix matrix, std::span<float> sums) const;
  /// Reads all of it. Throws as read().
  void check() const;

 private:
  PartReader file_;
  BlockShape shape_;
  std::int64_t sequences_;
  PieceSums sums_;
  std::vector<double> losses_;
};

}  // namespace kvq
