#pragma once
// quantizer.h5: self-contained. Layout: FORMAT.md.

#include <filesystem>
#include <string>

#include <kvq/artifacts/provenance.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

struct QuantizerFile {
  Provenance provenance;
  Quantizer quantizer;
};

void write_quantizer(const std::filesystem::path& path, const QuantizerFile& file, bool force);
/// Refuses, by name: unknown major version, missing or misshapen dataset, NaN/Inf, unsorted centroids, incomplete file.
QuantizerFile read_quantizer(const std::filesystem::path& path);

}  // namespace kvq
