#pragma once
// Root attributes that every artifact carries. No clock and no path: same inputs, seed and threads, same bytes.

#include <string>
#include <utility>
#include <vector>

namespace kvq {

struct Provenance {
  std::string model_sha256, tokenizer_sha256, text_sha256;
  std::string config;                                        ///< resolved settings as TOML, without paths
  std::vector<std::pair<std::string, std::string>> parents;  ///< name ("calibration", "thresholds") and file sha256
};

}  // namespace kvq
