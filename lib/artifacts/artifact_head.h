#pragma once
// What kind of artifact a file is, before it is read as one.

#include <filesystem>
#include <string>

namespace kvq {

struct ArtifactHead {
  std::string schema;    ///< calibration, thresholds, quantizer, weight-fisher or weights
  std::string version;   ///< major.minor
  std::string producer;  ///< program and version
};

/// Throws Input when the file cannot be opened, Format when it is none of kvq's (FORMAT.md) or of a kind not known.
ArtifactHead read_artifact_head(const std::filesystem::path& path);

}  // namespace kvq
