#pragma once
// thresholds.h5: per-channel ranges for every outlier fraction and sink count. Layout: FORMAT.md.

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <kvq/artifacts/provenance.h>
#include <kvq/core/kv_shape.h>

namespace kvq {

/// The tensors that can have static thresholds.
enum class ThresholdTensor { Key = 0, KeyPostRope = 1, Value = 2 };
inline constexpr int kThresholdTensors = 3;
const char* threshold_tensor_name(ThresholdTensor tensor);  ///< "key", "key_post", "value"

struct ChannelThresholds {
  std::vector<float> lower, upper;      ///< `[kv_heads, head_dim]` percentiles f/2 and 1 - f/2 (numpy 'linear')
  std::vector<float> minimum, maximum;  ///< `[kv_heads, head_dim]`
  double outlier_rate = 0.0;            ///< share of values strictly outside, sinks left out
  double capped_outlier_rate = 0.0;     ///< the same under the per-token cap (= outlier_rate without one)
  double online_outlier_rate = 0.0;     ///< 2k / width: the online rule per token at this fraction
};

struct ThresholdSet {
  double fraction = 0.0;
  int sinks = 0;
  std::vector<std::array<ChannelThresholds, kThresholdTensors>> layers;
};

struct ThresholdsFile {
  Provenance provenance;
  KvShape shape;
  double cap = 0.0;  ///< 0: none
  std::vector<ThresholdSet> sets;
  /// nullptr when the combination is not there.
  const ThresholdSet* find(double fraction, int sinks) const;
};

void write_thresholds(const std::filesystem::path& path, const ThresholdsFile& file, bool force);
/// Throws Input, Mismatch; Format for what no calibration gives: thresholds outside the extremes, rates that are none.
ThresholdsFile read_thresholds(const std::filesystem::path& path);

}  // namespace kvq
