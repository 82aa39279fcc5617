#pragma once
// The diagonal Fisher information of a model's weights: sqrt(Σ g²) of every weight of the blocks, g being the gradient
// of a sequence's mean loss, the sum going over the sequences. Layout: FORMAT.md.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/core/block_matrix.h>

namespace kvq {

/// Matrices are written layer by layer, in the order of kBlockMatrices.
class WeightFisherWriter {
 public:
  /// Throws Usage when the output cannot be made.
  WeightFisherWriter(const std::filesystem::path& path, bool force);
  ~WeightFisherWriter();
  /// `header.shape` is `shape.kv`.
  void write_header(const CalibrationHeader& header, const BlockShape& shape);
  void write_matrix(int layer, BlockMatrix matrix, const ScaledHalf& roots);
  /// Sets `complete`, flushes, renames. Throws Io.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Validates the schema on opening (Format/Mismatch errors name file and dataset). Not thread-safe.
class WeightFisherReader {
 public:
  explicit WeightFisherReader(const std::filesystem::path& path);
  ~WeightFisherReader();
  const CalibrationHeader& header() const;
  const BlockShape& shape() const;
  std::string sha256() const;  ///< of the file
  /// sqrt(Σ g²) `[rows, columns]`; throws Format for NaN, Inf and negative numbers (dataset and position).
  std::vector<float> roots(int layer, BlockMatrix matrix) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvq
