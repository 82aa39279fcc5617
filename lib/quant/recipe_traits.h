#pragma once
// What follows from a recipe: how its codes are stored, which tokens are still exact, whether a packed cache can hold
// it. The fields say what was asked for; everything that has to act on them asks here.

#include <cstdint>
#include <string>

#include <kvq/core/kv_shape.h>
#include <kvq/quant/recipe.h>

namespace kvq {

inline constexpr int kUsualGroup = 32;
inline constexpr int kBlockFormatChannels = 32;  ///< q4_0, q8_0

/// q4_0, q8_0, fp8: fixed codes without codebook.
bool is_block_format(CodebookKind kind);
/// These, turbo and vector: formats of their own, with neither axis, range, outliers nor fitted codebook to choose.
bool has_own_format(CodebookKind kind);
bool is_grouped(Axis axis);
/// For messages: "turbo", of vector the head of its codec ("delta3").
std::string codebook_name(const SideRecipe& side);
/// Whether what is fitted can count errors by weights: codebooks of nuq, centroids of pq.
bool fits_with_weights(const SideRecipe& side);
/// vector: whether head vectors are coded together with others, in blocks (kvq/vector/vector_sizes.h).
bool codes_blocks(const SideRecipe& side);

/// What a side is when nothing but its codebook is named: KVQuant's choice, or the only one of a block format.
SideRecipe usual_side(Side side, CodebookKind kind);
RangeKind usual_range(Axis axis);
/// pq has centroids for each kv head, where channels lie elsewhere; all else is shared by the layer.
Share usual_share(const SideRecipe& side);
/// Tokens quantized at once: a group of them, or all that a block needs at once; else one.
int usual_flush(const SideRecipe& side);

/// Never Usual.
OutlierRule outlier_rule(const SideRecipe& side);
/// `rule` as it is stored in a recipe: Usual where it says nothing new.
OutlierRule canonical_rule(SideRecipe side, OutlierRule rule);

/// Channels or tokens that share an online range; `width` on axis token.
int group_channels(const SideRecipe& side, int width);
/// Ranges of one token of `width` channels, token and token-group; the last group may be smaller.
int ranges_per_token(const SideRecipe& side, int width);

/// Whether a quantizer has lower and upper for each channel.
bool stores_thresholds(const SideRecipe& side);
/// Whether these come from thresholds.h5; otherwise they are taken from the calibration itself.
bool needs_thresholds_file(const SideRecipe& side);
/// Whether each token is encoded by itself as SideEncoder does it: thresholds per channel, or one range per token with
/// the k largest and smallest exact. What is not goes through RangeFinder.
bool is_streaming(const SideRecipe& side);

/// Runs of channels that share a codebook; 0 for formats of their own. With widths=pair the one run has a codebook per
/// width.
int codebook_count(const SideRecipe& side, int kv_heads, int head_dim);
/// Throws Usage for shapes that the recipe cannot be used with (blocks of 32, codebooks per group of channels, turbo's
/// rotation and outlier channels, subspaces of pq).
void check_shape(const Recipe& recipe, int kv_heads, int head_dim);
/// Throws Usage for recipes that evict or have tiers where a model has layers whose queries see some tokens only.
void check_local_layers(const Recipe& recipe, const ModelRope& rope);

/// Which tokens of a cache are exact. Tokens are settled for good: first as sinks, exact, then quantized, in order.
struct ExactWindow {
  int sinks = 0, recent = 0, flush = 1;

  /// Tokens [0, n) of a cache of `length` tokens are settled; the rest is still exact. Whenever recent + flush tokens
  /// from a multiple of flush on are exact, the oldest `flush` of them are quantized.
  std::int64_t settled(std::int64_t length) const;
  /// Whether tokens may be settled later than they come, beyond sinks.
  bool waits() const { return recent > 0 || flush > 1; }
  /// Exact tokens that a cache keeps room for.
  std::int64_t room() const { return recent + (flush > 1 ? flush : 0); }
};
ExactWindow exact_window(const Recipe& recipe, Side side);

/// Why packed caches cannot hold a recipe; empty when they can.
std::string packed_refusal(const Recipe& recipe);
/// The same for the packed cache on the GPU, which holds fewer.
std::string cuda_refusal(const Recipe& recipe);

/// Contradictions among the fields that choose axis, range, outliers and exact window. Throws Usage.
void validate_method(const SideRecipe& side, Side which);

}  // namespace kvq
