#pragma once
// calib.h5: keys, values and their loss gradients. Layout: FORMAT.md.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <kvq/artifacts/provenance.h>
#include <kvq/core/kv_shape.h>
#include <kvq/core/side.h>

namespace kvq {

struct CalibrationHeader {
  Provenance provenance;
  KvShape shape;
  ModelRope rope;
  std::int64_t sequences = 0, seqlen = 0;
  std::string bos;  ///< resolved: "never" or "window"
  /// How gradients are taken over the query heads that share a kv head: "joint" (the gradient itself), or "mean" or
  /// "max", which are magnitudes without a sign.
  std::string query_heads = "joint";
  bool gradients = true;             ///< false: made without a backward pass (kvq-fisher --forward-only)
  bool metrics = false;              ///< layers have key_metric and value_metric; files of 1.4 and before do not
  std::vector<std::int32_t> tokens;  ///< `[sequences, seqlen]`
  std::vector<std::string> domains;  ///< `[sequences]`
  std::vector<double> loss;          ///< `[sequences]` mean next-token loss, nats
  std::int64_t total_tokens() const { return sequences * seqlen; }
};

/// One tensor as stored: fp16 values of x / scale.
struct ScaledHalf {
  std::vector<std::uint16_t> values;
  float scale = 1.0f;
};

struct CalibrationLayer {
  ScaledHalf key, value, key_grad, value_grad;  ///< `[sequences * seqlen, kv_heads, head_dim]`; see `gradients`
  std::vector<double> query_moment;   ///< `[kv_heads, head_dim, head_dim]` sum over queries of q qᵀ (pre-RoPE)
  std::vector<float> attention_mass;  ///< `[sequences * seqlen]` attention that a token receives, summed
  /// With CalibrationHeader::metrics, `[kv_heads, head_dim, head_dim]`: the change of the attention's output for an
  /// error e of a key (of a value) is about eᵀMe. See lib/calib/key_metric.h and value_metric.h.
  std::vector<double> key_metric, value_metric;
};

/// Writes in fixed order, one layer at a time; chunks are shuffled and deflated in parallel.
class CalibrationWriter {
 public:
  /// Throws Usage when the output cannot be made (exists without force, folder missing or read-only).
  CalibrationWriter(const std::filesystem::path& path, bool force, int threads);
  ~CalibrationWriter();
  void write_header(const CalibrationHeader& header);
  void write_layer(int layer, const CalibrationLayer& data);
  /// Sets `complete`, flushes, renames. Throws Io.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Validates the schema on opening (Format/Mismatch errors name file and dataset). Not thread-safe.
class CalibrationReader {
 public:
  explicit CalibrationReader(const std::filesystem::path& path);
  ~CalibrationReader();
  const CalibrationHeader& header() const;
  std::string sha256() const;  ///< of the file
  /// fp32 `[total_tokens, kv_heads, head_dim]`; throws Format on NaN/Inf (names dataset and position).
  std::vector<float> values(int layer, Side side) const;
  std::vector<float> gradients(int layer, Side side) const;  ///< a file with them only
  /// Throws Format for a negative diagonal.
  std::vector<double> query_moment(int layer) const;
  /// Throws Format for a negative one, and where it does not sum to one for each query.
  std::vector<float> attention_mass(int layer) const;
  /// A file with metrics only. Throws Format for one that is not symmetric, has a negative diagonal, or, of keys, is
  /// zero in a layer whose queries are not.
  std::vector<double> metric(int layer, Side side) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvq
