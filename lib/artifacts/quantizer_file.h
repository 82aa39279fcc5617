#pragma once
// quantizer.h5: self-contained. Layout: FORMAT.md.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <kvq/artifacts/provenance.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

struct QuantizerFile {
  Provenance provenance;
  Quantizer quantizer;
  /// fingerprints() of the calibration tokens (kvq/core/fingerprint.h), dataset `/fingerprints` u64: lets kvq-eval warn
  /// when it judges on text that the quantizer was made from.
  std::vector<std::uint64_t> fingerprints;
};

void write_quantizer(const std::filesystem::path& path, const QuantizerFile& file, bool force);
/// Refuses, by name: unknown major version, missing or misshapen dataset, NaN/Inf, unsorted centroids, decoded
/// values that are not the centroids though there is no Q-Norm, incomplete file.
QuantizerFile read_quantizer(const std::filesystem::path& path);

}  // namespace kvq
