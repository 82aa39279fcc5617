#pragma once
// weights.h5: the quantized matrices of a model's blocks, one at a time in memory. Layout: FORMAT.md.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <kvq/artifacts/provenance.h>
#include <kvq/core/block_matrix.h>
#include <kvq/quant/weight_matrix.h>
#include <kvq/quant/weight_scheme.h>

namespace kvq {

struct WeightsHeader {
  Provenance provenance;
  BlockShape shape;
  WeightScheme scheme;
  double bits_counted = 0;                  ///< bytes of all matrices · 8 / their weights; finish() sets it
  std::vector<std::uint64_t> fingerprints;  ///< of the calibration tokens, as in quantizer files
};

/// Matrices are written layer by layer, in the order of kBlockMatrices.
class WeightsWriter {
 public:
  /// Throws Usage when the output cannot be made.
  WeightsWriter(const std::filesystem::path& path, const WeightsHeader& header, bool force);
  ~WeightsWriter();
  void write_matrix(int layer, BlockMatrix matrix, const WeightMatrix& data);
  double bits_counted() const;  ///< of what is written so far
  /// Sets `bits_counted` and `complete`, flushes, renames. Throws Io.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Validates the schema on opening, a matrix when it is read (Format/Mismatch errors name file and dataset). Not
/// thread-safe.
class WeightsReader {
 public:
  explicit WeightsReader(const std::filesystem::path& path);
  ~WeightsReader();
  const WeightsHeader& header() const;
  WeightMatrix matrix(int layer, BlockMatrix matrix) const;
  /// Reads everything, and compares what is counted with what the file says.
  void check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvq
