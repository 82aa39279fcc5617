#pragma once
// The shape of a model's KV cache and its rotary embedding: what calibration files, quantizers and caches need to know
// of a model, without the model.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvq {

/// Shape of the KV cache. One token's keys (or values) of a layer are `[kv_heads, head_dim]`, `width()` numbers.
struct KvShape {
  int layers = 0;
  int heads = 0;  ///< query heads; a multiple of kv_heads
  int kv_heads = 0;
  int head_dim = 0;

  int width() const { return kv_heads * head_dim; }
  int queries_per_kv_head() const { return heads / kv_heads; }
  bool operator==(const KvShape&) const = default;
};

/// Rotary position embedding in Hugging Face's channel order: pair j is (channel j, channel j + rotary_dim / 2).
struct RopeParams {
  std::string kind = "default";  ///< "default", "linear" or "llama3"
  double theta = 10000.0;
  int rotary_dim = 0;   ///< channels that rotate, the first ones of a head; the rest pass
  double factor = 1.0;  ///< linear: positions are divided by it; llama3: its `factor`
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  ///< llama3 only
  double original_context = 0;                           ///< llama3 only
  bool operator==(const RopeParams&) const = default;

  /// Angle per position of each pair, `[rotary_dim / 2]`, radians, in double: fp32 angles lose 2e-3 at 128K tokens.
  std::vector<double> inverse_frequencies() const;
};

/// Rotary embeddings of all layers: one for those that see every token before them, and what local layers, which only
/// some models have, do otherwise.
struct ModelRope : RopeParams {
  ModelRope() = default;
  ModelRope(RopeParams everywhere) : RopeParams(std::move(everywhere)) {}

  RopeParams local;                    ///< of local layers
  std::int64_t window = 0;             ///< a query of a local layer sees its own token and the window - 1 before it
  std::vector<std::uint8_t> is_local;  ///< by layer, 0 or 1; empty: there are none

  bool has_local_layers() const { return !is_local.empty(); }
  bool local_at(int layer) const { return has_local_layers() && is_local.at(static_cast<std::size_t>(layer)) != 0; }
  const RopeParams& of(int layer) const { return local_at(layer) ? local : *this; }
  /// Tokens that a query of the layer sees at most; 0: all up to its own.
  std::int64_t window_of(int layer) const { return local_at(layer) ? window : 0; }
  /// The first token that the query at `position` sees.
  std::int64_t first_seen(int layer, std::int64_t position) const {
    const std::int64_t most = window_of(layer);
    return most == 0 || position < most ? 0 : position + 1 - most;
  }
  bool operator==(const ModelRope&) const = default;
};

}  // namespace kvq
