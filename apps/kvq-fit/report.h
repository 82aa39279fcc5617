#pragma once
// What kvq-fit prints.

#include <filesystem>
#include <string>
#include <vector>

#include <kvq/fit/fit.h>

namespace kvq::apps {

struct Fitted {
  std::filesystem::path file;
  const Quantizer& quantizer;
  const FitReport& report;
};

std::string fits_as_text(const std::vector<Fitted>& fits);
/// `{"fits": [{"recipe", "file", "bits_nominal", "bits_counted", "bits_counted_32k", "table_bytes", "error_key",
/// "error_value"}]}`; `bits_counted` is at 2048 tokens; errors of block formats are null.
std::string fits_as_json(const std::vector<Fitted>& fits);

}  // namespace kvq::apps
