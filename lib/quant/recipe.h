#pragma once
// A recipe says how a cache is quantized. Short form for the command line (`nuq3-1%:sink=1`), long form as TOML
// (lib/artifacts/recipe_toml.h). DESIGN §3.

#include <string>
#include <vector>

#include <kvq/core/side.h>
#include <kvq/quant/eviction.h>
#include <kvq/quant/rounding_recipe.h>
#include <kvq/quant/tiers.h>
#include <kvq/vector/turbo_options.h>
#include <kvq/vector/vector_recipe.h>

namespace kvq {

enum class CodebookKind {
  Nuq,  ///< fitted, non-uniform (KVQuant)
  Int,  ///< uniform grid over the range
  Nf,   ///< NormalFloat: quantiles of a normal, scaled to [-1, 1] (QLoRA), for any number of bits
  Q4_0,
  Q8_0,    ///< llama.cpp's blocks of 32 channels with one fp16 scale (kvq/quant/block_formats.h)
  Fp8,     ///< e4m3, each value by itself
  Turbo,   ///< head vectors: norm, rotation, levels that need no data (kvq/vector/turbo_codec.h)
  Vector,  ///< head vectors by a codec of kvq/vector/vector_recipe.h: scalarB, deltaB, pq
};
enum class Axis {
  Channel,       ///< one range per channel, over tokens
  Token,         ///< one range per token, over all kv heads of the layer
  ChannelGroup,  ///< one range per channel and `group` consecutive tokens (KIVI's keys)
  TokenGroup,    ///< one range per token and `group` consecutive channels (KIVI's values, Atom, FlexGen)
};
enum class RangeKind {
  Static,  ///< calibrated: of each channel, or pooled over the channels that share a range (token, token-group)
  Online,  ///< minimum and maximum of what shares the range (token, token-group, channel-group)
  Window,  ///< the evaluated window's own range: an oracle, simulated only, never counted as a cache
  None,    ///< fp8: values are coded as they are; turbo, vector: by the scale of their head vector
};
/// Which values stay exact.
enum class OutlierRule {
  Usual,      ///< Threshold for static and window ranges, TopK for online ones
  Threshold,  ///< outside the channel's thresholds: as many as there are
  TopK,       ///< a fixed number: the largest and smallest of the token, or of a channel in its group (channel-group)
};
enum class FitWeights {
  Fisher,          ///< F·s² (KVQuant appendix E, eq. 7)
  FisherUnscaled,  ///< F, as the published code does
  None,
  Query,  ///< no gradients: diagonals of key_metric and value_metric, times the attention that a token receives; · s²
};
enum class Share { Layer, Head, Channels };

struct SideRecipe {
  CodebookKind codebook = CodebookKind::Nuq;
  int bits = 4;  ///< 1 … 8
  Axis axis = Axis::Channel;
  RangeKind range = RangeKind::Static;
  bool post_rope = false;  ///< keys only: quantize after RoPE (ablation)
  double outliers = 0.0;   ///< fraction kept exact, by `rule`
  double cap = 0.0;        ///< rule threshold: at most ceil(cap · width) of a token exact; 0 = no cap
  FitWeights weights = FitWeights::Fisher;
  Share share = Share::Layer;
  bool qnorm = false;
  int group = 0;           ///< channel-group: tokens, token-group: channels that share a range; 0 on the other axes
  int share_channels = 0;  ///< Share::Channels: channels that share a codebook
  OutlierRule rule = OutlierRule::Usual;
  bool integer_zero = false;  ///< int, online: the zero point is a code, 2^bits possible values (Atom)
  int recent = 0;             ///< newest tokens that are still exact
  int flush = 0;              ///< tokens quantized at once when they have left `recent`; 0: `group`, or 1 without one
  bool half_bit = false;      ///< half a bit more on average; widths=pair only
  int levels = 0;             ///< values: 3, 5, 10 or 20 beside 1, 2, 3, 4 bits, three codes together; 0: 2^bits
  Widths widths = Widths::Flat;
  Rotation rotation = Rotation::None;
  RoundingRecipe rounding;
  TurboOptions turbo;   ///< codebook turbo only
  VectorRecipe vector;  ///< codebook vector only; its bits are `bits`, too
  bool operator==(const SideRecipe&) const = default;
};

struct Recipe {
  bool quantized = true;  ///< false: `none`, the unquantized cache
  SideRecipe key, value;
  int sinks = 1;  ///< first tokens of every sequence kept exact
  EvictionRecipe eviction;
  TierRecipe tiers;  ///< bits of the sides are those of the first tier
  bool operator==(const Recipe&) const = default;

  const SideRecipe& side(Side side) const { return side == Side::Key ? key : value; }
  SideRecipe& side(Side side) { return side == Side::Key ? key : value; }

  bool evicts() const { return eviction.rule != EvictionRule::None; }
  bool tiered() const { return tiers.any(); }
  /// `none`: quantizes nothing, evicts nothing.
  bool is_baseline() const { return !quantized && !evicts(); }

  /// Needs to see the window that it is judged on: no cache, and never counted as one.
  bool is_oracle() const {
    return key.range == RangeKind::Window || value.range == RangeKind::Window || tiers.oracle();
  }
};

/// Parses the short form. Throws Usage naming the word, its value and the known ones; contradictory words too
/// (`key=token` with `range=static`, a cap without outliers, …).
Recipe parse_recipe(const std::string& text);

/// Canonical short form: parse_recipe(short_form(r)) == r, defaults left out.
std::string short_form(const Recipe& recipe);

/// File name of a recipe: letters, digits, '-', '_', '.' only; different recipes, different slugs. At most 160
/// characters: the end of a longer one is a hash.
std::string slug(const Recipe& recipe);

/// Throws Usage when the fields contradict each other (also used after reading TOML).
void validate(const Recipe& recipe);

}  // namespace kvq
