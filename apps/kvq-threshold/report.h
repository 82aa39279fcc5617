#pragma once
// What kvq-threshold prints.

#include <string>

#include <kvq/artifacts/thresholds_file.h>

namespace kvq::apps {

/// Measured outlier rates: least, mean and largest over layers, or every layer.
std::string thresholds_as_text(const ThresholdsFile& file, bool every_layer);
/// `{"cap", "sets": [{"fraction", "sinks", "layers": [{"layer", "key": {…}, "key_post": {…}, "value": {…}}]}]}`.
std::string thresholds_as_json(const ThresholdsFile& file);

}  // namespace kvq::apps
