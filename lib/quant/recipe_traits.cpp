#include <kvq/quant/recipe_traits.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/kernels/layout/packed_layout.h>
#include <kvq/quant/recipe_words.h>
#include <kvq/quant/turbo_recipe.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/vector_sizes.h>

namespace kvq {

namespace {

constexpr int kMostGroup = 1 << 20, kMostExact = 1 << 20;

[[noreturn]] void contradiction(Side side, const std::string& message) {
  fail(ErrorKind::Usage, fmt::format("recipe, {}: {}", side_name(side), message));
}

/// For messages.
std::string range_text(RangeKind range) { return fmt::format("range={}", word_of(kRangeWords, range)); }

void validate_own_format(const SideRecipe& side, Side which) {
  const SideRecipe usual = usual_side(which, side.codebook);
  const std::string kind = codebook_name(side);
  const bool fixed_bits = is_block_format(side.codebook);
  const char* word = side.bits != usual.bits && fixed_bits ? "another number of bits"
                     : side.axis != usual.axis             ? "another axis"
                     : side.group != usual.group           ? "another group"
                     : side.range != usual.range           ? "another range"
                     : side.outliers != 0 || side.cap != 0 ? "outliers"
                     : side.rule != OutlierRule::Usual     ? "a rule for outliers"
                     : side.integer_zero                   ? "a zero point"
                                                           : nullptr;
  if (word) contradiction(which, fmt::format("{} is a fixed format; it cannot have {}", kind, word));
}

void validate_axis(const SideRecipe& side, Side which) {
  const bool grouped = is_grouped(side.axis);
  if (!grouped && side.group != 0) contradiction(which, "group needs axis channel-group or token-group");
  if (grouped && (side.group < 2 || side.group > kMostGroup)) {
    contradiction(which, fmt::format("group {}; 2 to {} are possible", side.group, kMostGroup));
  }
  if (side.axis == Axis::ChannelGroup && layout::kPageTokens % side.group != 0 &&
      side.group % layout::kPageTokens != 0) {
    contradiction(which,
                  fmt::format("group {} on axis channel-group: pages hold {} tokens, so that a group must divide "
                              "them or be a multiple (8, 16, 32, 64, 128, …)",
                              side.group, layout::kPageTokens));
  }
  if (side.range == RangeKind::None) contradiction(which, "range=none is for fp8, turbo and codecs of head vectors");
  if (side.axis == Axis::Channel && side.range == RangeKind::Online) {
    contradiction(which,
                  "range=online on axis channel would change with every token: axis channel-group, token or "
                  "token-group can have it, axis channel range static or window");
  }
  if (side.axis == Axis::ChannelGroup && side.range != RangeKind::Online) {
    contradiction(which, fmt::format("{} does not depend on the group of tokens: axis channel can have it, axis "
                                     "channel-group range online",
                                     range_text(side.range)));
  }
  if (side.integer_zero && (side.codebook != CodebookKind::Int || side.range != RangeKind::Online)) {
    contradiction(which, "zero=integer is for int with range=online");
  }
}

void validate_outliers(const SideRecipe& side, Side which) {
  if (!(side.cap >= 0.0 && side.cap < 1.0)) {
    contradiction(which, fmt::format("cap {}; it must be above 0 and below 1 (100 %), or 0 for none", side.cap));
  }
  if (side.outliers == 0.0) {
    if (side.cap > 0.0) contradiction(which, "cap limits outliers, but the recipe keeps none");
    if (side.rule != OutlierRule::Usual) contradiction(which, "rule is for outliers, but the recipe keeps none");
    return;
  }
  if (side.rule != OutlierRule::Usual && canonical_rule(side, side.rule) == OutlierRule::Usual) {
    contradiction(which, fmt::format("rule {} is the usual one with {}: leave it out", word_of(kRuleWords, side.rule),
                                     range_text(side.range)));
  }
  if (side.cap > 0.0 && (outlier_rule(side) != OutlierRule::Threshold || side.range == RangeKind::Window)) {
    contradiction(which,
                  "cap limits the outliers of calibrated thresholds (range=static, or range=online with "
                  "rule=threshold); there are none here");
  }
}

void validate_window(const SideRecipe& side, Side which) {
  if (side.recent < 0 || side.recent > kMostExact || side.flush < 0 || side.flush > kMostExact) {
    contradiction(which, fmt::format("recent {}, flush {}; 0 to {} are possible", side.recent, side.flush, kMostExact));
  }
  if (side.axis == Axis::ChannelGroup && side.flush % side.group != 0) {
    contradiction(which, fmt::format("flush {} must be a multiple of group {}: groups of tokens are quantized whole",
                                     side.flush, side.group));
  }
  if (side.flush % usual_flush(side) != 0) {
    contradiction(which, fmt::format("flush {} must be a multiple of page {}: with lowrank= pages are coded whole",
                                     side.flush, usual_flush(side)));
  }
  if (side.flush == usual_flush(side)) {
    contradiction(which, fmt::format("flush {} is the usual one: leave it out", side.flush));
  }
}

}  // namespace

bool is_block_format(CodebookKind kind) {
  return kind == CodebookKind::Q4_0 || kind == CodebookKind::Q8_0 || kind == CodebookKind::Fp8;
}

bool has_own_format(CodebookKind kind) {
  return is_block_format(kind) || kind == CodebookKind::Turbo || kind == CodebookKind::Vector;
}

bool is_grouped(Axis axis) { return axis == Axis::ChannelGroup || axis == Axis::TokenGroup; }

std::string codebook_name(const SideRecipe& side) {
  return side.codebook == CodebookKind::Vector ? vector_head(side.vector) : word_of(kCodebookWords, side.codebook);
}

bool fits_with_weights(const SideRecipe& side) {
  return side.codebook == CodebookKind::Nuq ||
         (side.codebook == CodebookKind::Vector && side.vector.method == VectorMethod::Product);
}

bool codes_blocks(const SideRecipe& side) {
  return side.codebook == CodebookKind::Vector && block_rows(side.vector) > 1;
}

Share usual_share(const SideRecipe& side) {
  return side.codebook == CodebookKind::Vector && side.vector.method == VectorMethod::Product ? Share::Head
                                                                                              : Share::Layer;
}

int usual_flush(const SideRecipe& side) {
  if (side.codebook == CodebookKind::Vector && needs_whole_blocks(side.vector))
    return static_cast<int>(block_rows(side.vector));
  return side.axis == Axis::ChannelGroup ? side.group : 1;
}

RangeKind usual_range(Axis axis) { return axis == Axis::Channel ? RangeKind::Static : RangeKind::Online; }

SideRecipe usual_side(Side which, CodebookKind kind) {
  SideRecipe side = default_side(which);
  side.codebook = kind;
  if (!has_own_format(kind)) return side;
  const bool whole = kind != CodebookKind::Q4_0 && kind != CodebookKind::Q8_0;  // no blocks
  side.bits = kind == CodebookKind::Q8_0 || kind == CodebookKind::Fp8 ? 8 : 4;
  side.axis = whole ? Axis::Token : Axis::TokenGroup;
  side.group = whole ? 0 : kBlockFormatChannels;
  side.range = whole ? RangeKind::None : RangeKind::Online;
  return side;
}

OutlierRule outlier_rule(const SideRecipe& side) {
  if (side.rule != OutlierRule::Usual) return side.rule;
  return side.range == RangeKind::Online ? OutlierRule::TopK : OutlierRule::Threshold;
}

OutlierRule canonical_rule(SideRecipe side, OutlierRule rule) {
  side.rule = OutlierRule::Usual;
  return rule == outlier_rule(side) ? OutlierRule::Usual : rule;
}

int group_channels(const SideRecipe& side, int width) {
  return side.axis == Axis::TokenGroup ? std::min(side.group, width) : width;
}

int ranges_per_token(const SideRecipe& side, int width) {
  return static_cast<int>(layout::div_up(width, group_channels(side, width)));
}

bool stores_thresholds(const SideRecipe& side) {
  return side.range == RangeKind::Static ||
         (side.range == RangeKind::Online && side.outliers > 0.0 && outlier_rule(side) == OutlierRule::Threshold);
}

bool needs_thresholds_file(const SideRecipe& side) {
  return stores_thresholds(side) && side.outliers > 0.0 &&
         (side.axis == Axis::Channel || side.range == RangeKind::Online);
}

bool is_streaming(const SideRecipe& side) {
  if (has_own_format(side.codebook) || side.integer_zero) return false;
  const OutlierRule rule = outlier_rule(side);
  if (side.range != RangeKind::Online) return side.outliers == 0.0 || rule == OutlierRule::Threshold;
  return side.axis == Axis::Token && (side.outliers == 0.0 || rule == OutlierRule::TopK);
}

int codebook_count(const SideRecipe& side, int kv_heads, int head_dim) {
  if (has_own_format(side.codebook)) return 0;
  if (side.share == Share::Channels) return kv_heads * head_dim / side.share_channels;
  return side.share == Share::Head ? kv_heads : 1;
}

void check_shape(const Recipe& recipe, int kv_heads, int head_dim) {
  if (!recipe.quantized) return;
  for (const Side which : kSides) {
    const SideRecipe& side = recipe.side(which);
    const bool blocks = side.codebook == CodebookKind::Q4_0 || side.codebook == CodebookKind::Q8_0;
    if (blocks && head_dim % kBlockFormatChannels != 0) {
      fail(
          ErrorKind::Usage,
          fmt::format("recipe {}: {} has blocks of {} channels of a head; heads of {} channels cannot be cut into them",
                      short_form(recipe), word_of(kCodebookWords, side.codebook), kBlockFormatChannels, head_dim));
    }
    if (side.codebook == CodebookKind::Turbo) check_turbo_shape(recipe, which, head_dim);
    if (side.codebook == CodebookKind::Vector) check_vector_shape(recipe, which, head_dim);
    if (side.share == Share::Channels && head_dim % side.share_channels != 0) {
      fail(ErrorKind::Usage, fmt::format("recipe {}: share={} must divide a head's {} channels ({} kv heads)",
                                         short_form(recipe), side.share_channels, head_dim, kv_heads));
    }
  }
}

void check_local_layers(const Recipe& recipe, const ModelRope& rope) {
  if (!(recipe.evicts() || recipe.tiered()) || !rope.has_local_layers()) return;
  fail(ErrorKind::Usage,
       fmt::format("recipe '{}' {}, but the model has layers whose queries see {} tokens only; recipes that {} are for "
                   "models all of whose layers see everything",
                   short_form(recipe), recipe.evicts() ? "evicts tokens" : "has tiers by attention", rope.window,
                   recipe.evicts() ? "evict" : "have tiers"));
}

std::int64_t ExactWindow::settled(std::int64_t length) const {
  const std::int64_t left = std::max<std::int64_t>(length - recent, 0);
  return std::max<std::int64_t>(left - left % flush, std::min<std::int64_t>(sinks, length));
}

ExactWindow exact_window(const Recipe& recipe, Side which) {
  const SideRecipe& side = recipe.side(which);
  return {recipe.sinks, side.recent, side.flush > 0 ? side.flush : usual_flush(side)};
}

std::string packed_refusal(const Recipe& recipe) {
  if (recipe.evicts()) {
    return fmt::format(
        "recipe '{}': the packed cache cannot hold it (its pages keep all of their tokens, for all "
        "heads; evict= drops tokens, most rules for each head by itself); use --cache simulated",
        short_form(recipe));
  }
  if (!recipe.quantized) return "recipe 'none' quantizes nothing: there are no bits to pack";
  if (recipe.tiered()) {
    return fmt::format(
        "recipe '{}': the packed cache cannot hold it (its pages have the same bits for all tokens; tiers move tokens "
        "from one number of bits to another); use --cache simulated",
        short_form(recipe));
  }
  for (const Side which : kSides) {
    const SideRecipe& side = recipe.side(which);
    std::string reason;
    if (side.range == RangeKind::Window) {
      reason = "range=window is an oracle that knows the evaluated window";
    } else if (codes_blocks(side)) {
      reason = fmt::format("{} codes tokens together with others, in blocks that pages cannot be cut into",
                           codebook_name(side));
    } else if (side.axis == Axis::ChannelGroup && side.group > layout::kPageTokens) {
      reason = fmt::format("pages have {} tokens, a group here has {}", layout::kPageTokens, side.group);
    } else if (side.axis == Axis::ChannelGroup && side.outliers > 0.0 && outlier_rule(side) == OutlierRule::TopK) {
      reason = "pages have no place for rule=topk of groups of tokens";
    } else if (side.share == Share::Channels) {
      reason = "its codebooks belong to heads, not to groups of channels";
    }
    if (!reason.empty()) {
      return fmt::format("recipe '{}', {}: the packed cache cannot hold it ({}); use --cache simulated",
                         short_form(recipe), side_name(which), reason);
    }
  }
  return "";
}

std::string cuda_refusal(const Recipe& recipe) {
  if (std::string refusal = packed_refusal(recipe); !refusal.empty()) return refusal;
  const SideRecipe &key = recipe.key, &value = recipe.value;
  const char* reason = nullptr;
  if (has_own_format(key.codebook) || has_own_format(value.codebook)) {
    reason = "the kernels know no q4_0, q8_0, fp8, turbo and codecs of head vectors yet";
  } else if (key.axis != Axis::Channel || value.axis != Axis::Token || value.range != RangeKind::Online) {
    reason = "the kernels know keys with a range per channel and values with their own range per token";
  } else if (exact_window(recipe, Side::Key).waits() || exact_window(recipe, Side::Value).waits()) {
    reason = "the kernels quantize tokens at once: no recent tokens, no groups of tokens";
  } else if (!is_streaming(key) || !is_streaming(value)) {
    reason = "the kernels know no zero=integer and no rule= other than the usual one";
  } else if (value.outliers > 0.0 && (!has_plain_codes(value) || value.rounding.uses_blocks())) {
    reason = "the GPU's encoder knows feedback, icm, levels= and rotate= of values without outliers only";
  } else if (key.cap > 0.0 && (!has_plain_codes(key) || key.rounding.uses_blocks())) {
    reason = "the GPU's encoder knows no cap= beside feedback, icm and widths=";
  } else if (key.widths == Widths::Pair && width_choices(key).back() > 7) {
    reason = "the kernels know widths=pair up to 5 bits";
  }
  if (reason == nullptr) return "";
  return fmt::format("--cache cuda: recipe '{}': {}; --cache packed and --cache simulated do", short_form(recipe),
                     reason);
}

void validate_method(const SideRecipe& side, Side which) {
  if (has_own_format(side.codebook)) {
    validate_own_format(side, which);
  } else {
    validate_axis(side, which);
    validate_outliers(side, which);
  }
  validate_window(side, which);
  if (side.share == Share::Channels ? side.share_channels < 1 || side.share_channels > kMostGroup
                                    : side.share_channels != 0) {
    contradiction(which, fmt::format("share of {} channels; 1 to {} are possible", side.share_channels, kMostGroup));
  }
}

}  // namespace kvq
