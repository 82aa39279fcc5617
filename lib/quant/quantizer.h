#pragma once
// A fitted quantizer: everything that encoding and decoding need, and nothing else.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <kvq/core/kv_shape.h>
#include <kvq/core/side.h>
#include <kvq/quant/codebook.h>
#include <kvq/quant/recipe.h>

namespace kvq {

struct TurboTables;

/// What rounding with feedback needs (rounding_recipe.h, docs/method.md); empty where the recipe does not ask for it.
struct FeedbackTables {
  std::vector<std::int32_t> order;  ///< `[kv_heads, head_dim]` channel at each coding position; feedback or icm
  /// `[kv_heads, head_dim, head_dim]` U_jk / U_jj by coding position, 0 for k <= j; feedback. UᵀU = H^-1 in coding
  /// order.
  std::vector<float> updates;
  std::vector<float> hessian;  ///< `[kv_heads, head_dim, head_dim]` H in channel order; icm. Only ratios matter.
};

/// Codebooks of a tier below the first (tiers.h), as many as the first has. Ranges, thresholds and exact values are the
/// same in all tiers.
struct LowerTier {
  int bits = 0;
  std::vector<Codebook> codebooks;
};

struct SideQuantizer {
  SideRecipe recipe;
  int kv_heads = 0, head_dim = 0;
  std::vector<float> lower, upper;  ///< `[kv_heads, head_dim]`, where stores_thresholds(recipe); else empty
  std::vector<Codebook> codebooks;  ///< codebook_count(recipe, …); widths=pair: one for each of width_choices()
  /// Exact values and online ranges are stored as fp16(x · 2^-exponent): values of 1e-6 and 7e4 survive.
  int exponent = 0;
  double outlier_rate = 0.0;  ///< measured in calibration: exact values per value, sinks left out

  std::vector<std::int32_t> widths;   ///< `[kv_heads, head_dim]` bits of each channel, widths=pair only
  std::vector<float> rotation_scale;  ///< `[kv_heads, head_dim]` scale of HeadRotation, rotate=hadamard only
  FeedbackTables feedback;

  std::shared_ptr<const TurboTables> turbo;    ///< one for all layers, codebook turbo only
  std::vector<std::int32_t> outlier_channels;  ///< `[kv_heads, turbo.outlier_channels]`, ascending in each head

  /// Of each of codec_count() codecs (vector_side.h), as train_vector_tables() makes them; codebook vector only.
  std::vector<std::vector<std::byte>> vector_tables;
  /// Mean bytes of a full block, all kv heads, measured in calibration where blocks vary in size; 0: not measured.
  double block_bytes = 0.0;

  std::vector<LowerTier> lower_tiers;  ///< recipes with tiers only

  int width() const { return kv_heads * head_dim; }
  /// Not with share=N.
  const Codebook& codebook_of_head(int kv_head) const {
    return codebooks.size() == 1 ? codebooks[0] : codebooks[kv_head];
  }
};

/// One tier by itself: a side as a recipe of those bits without tiers has it.
SideQuantizer tier_side(const SideQuantizer& side, int tier);

struct LayerQuantizer {
  SideQuantizer key, value;
  const SideQuantizer& side(Side side) const { return side == Side::Key ? key : value; }
  SideQuantizer& side(Side side) { return side == Side::Key ? key : value; }
};

struct Quantizer {
  Recipe recipe;
  KvShape shape;
  ModelRope rope;
  std::vector<LayerQuantizer> layers;  ///< none where the recipe does not quantize
};

}  // namespace kvq
