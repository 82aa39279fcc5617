#pragma once
// Counted bits: what a cache of a recipe really occupies. Constants and rules come from kernels/layout, so the
// simulated cache counts what the packed one allocates.

#include <cstdint>
#include <span>
#include <vector>

#include <kvq/quant/quantizer.h>

namespace kvq {

/// Bytes of one sequence's cache, all layers, both sides.
struct Footprint {
  std::int64_t codes = 0;      ///< unused slots of the last page, and all of blocks of head vectors, included
  std::int64_t ranges = 0;     ///< online zero and scale per token
  std::int64_t outliers = 0;   ///< values, channels, counts, reserved slack, overflow blocks
  std::int64_t exact = 0;      ///< sinks (and recents); all of an unquantized cache
  std::int64_t padding = 0;    ///< of pages, to a multiple of layout::kPageAlignment
  std::int64_t tables = 0;     ///< block tables
  std::int64_t selection = 0;  ///< eviction, tiers: positions of kept tokens, weights that they are chosen by
  std::int64_t total() const { return codes + ranges + outliers + exact + padding + tables + selection; }
  bool operator==(const Footprint&) const = default;
  double bits_per_value(const KvShape& shape, std::int64_t tokens) const;
};

/// Forecast at `tokens` from the calibrated outlier rates and sizes of blocks (the most that a block can take where its
/// size was not measured). Where tokens are evicted at the end of a prompt: as if all
/// of them were a prompt that has just been read.
Footprint forecast_footprint(const Quantizer& quantizer, std::int64_t tokens);

/// Exact values of each token that were really seen, `[layers, tokens]`; 0 for sinks. Counts where their number varies.
struct OutliersPerToken {
  std::span<const std::uint32_t> key, value;
};
/// `closed_blocks`: bytes of each closed block of codecs that code tokens together, `[layers, 2]`, keys before values;
/// may be empty where there are none.
Footprint measured_footprint(const Quantizer& quantizer, std::int64_t tokens, const OutliersPerToken& outliers,
                             std::span<const std::vector<std::int64_t>> closed_blocks = {});

/// fp16 cache of the same shape: the unquantized baseline.
std::int64_t fp16_bytes(const KvShape& shape, std::int64_t tokens);

/// Mean of the nominal bits of keys and values. `head_dim` matters for pq only.
double nominal_bits(const Recipe& recipe, int head_dim = 0);

/// Per-model tables (thresholds, codebooks, what rounding with feedback needs), 4 bytes a number, apart from the
/// per-token bits.
std::int64_t table_bytes(const Quantizer& quantizer);

}  // namespace kvq
