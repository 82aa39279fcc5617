#pragma once
// What a recipe may say beyond KVQuant's choices, each lever by itself: block-Fisher rounding, widths per RoPE pair,
// rotated values, numbers of levels between the powers of two. docs/method.md derives them.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/core/side.h>

namespace kvq {

struct Recipe;
struct SideRecipe;

enum class Widths {
  Flat,  ///< every channel has the recipe's bits
  Pair,  ///< keys: each RoPE pair has its own, the same total for every head vector
};
/// What the matrix H of a head vector is made from.
enum class RoundingMetric {
  Fisher,  ///< E[g gᵀ], g the gradients of the loss
  Query,   ///< no gradients: keys by the queries that attend to them, values by the output projection
};
enum class Rotation {
  None,
  Hadamard,  ///< values: channels scaled by σ^-1/2, then mixed by a Hadamard matrix per kv head
};
/// In which order the channels of a head vector are rounded.
enum class CodingOrder {
  Energy,     ///< descending H_jj s_j² (s_j: half-width of the channel's range; 1 where ranges are online)
  Ascending,  ///< the reverse, for comparison
  Natural,    ///< as they lie
};

/// Rounding that makes eᵀHe small, H = E[g gᵀ] of a head vector's gradients g, or what stands for it.
struct RoundingRecipe {
  bool feedback = false;  ///< a channel's error is pushed into the channels that are still to come
  int icm = 0;            ///< passes of coordinate descent afterwards, 0 to 16
  CodingOrder order = CodingOrder::Energy;
  double damp = 0.01;  ///< added to H's diagonal, in parts of its mean
  double clip = 1.0;   ///< quantile of the tokens' gradient energy at which gradients are cut; 1: none
  RoundingMetric metric = RoundingMetric::Fisher;
  bool operator==(const RoundingRecipe&) const = default;

  bool uses_blocks() const { return feedback || icm > 0; }
};

/// Levels of a code: 2^bits, or 3, 5, 10, 20.
int code_levels(const SideRecipe& side);
/// Nominal bits of a value: of its code, of three codes together for 3, 5, 10, 20 levels. `head_dim` matters for pq
/// only, which has so many bits for a head vector.
double code_bits(const SideRecipe& side, int head_dim = 0);
/// Whether H is needed.
bool needs_blocks(const SideRecipe& side);
/// Whether a fit needs gradients, or key_metric and value_metric of a calibration file. Codebooks that are not fitted
/// need neither: weights only measure their error.
bool needs_gradients(const SideRecipe& side);
bool needs_metric(const SideRecipe& side);
/// Whether codes have one width and a power of two of levels for all channels, and values are not rotated.
bool has_plain_codes(const SideRecipe& side);
/// Bits that widths=pair may give a channel, ascending; a codebook each.
std::vector<int> width_choices(const SideRecipe& side);
/// Bits of all channels of a head vector together; 0 when they do not come to whole bits per pair.
int head_vector_bits(const SideRecipe& side, int head_dim);

/// What is wrong with these fields, if anything.
std::optional<std::string> rounding_problem(const SideRecipe& side, Side which);

/// The recommended recipes: kvq1.5, kvq2, kvq3, kvq4. nullopt: no such name.
inline constexpr std::array<std::string_view, 4> kPresetNames = {"kvq1.5", "kvq2", "kvq3", "kvq4"};
std::optional<SideRecipe> preset_side(std::string_view name, Side which);

// Words of the short form.

/// "feedback, icm=N, …"
std::string_view known_rounding_words();
/// For which side a word stands; nullopt: for both.
std::optional<Side> side_of_rounding_word(std::string_view name);
enum class WordResult { Unknown, Taken, Refused };
/// Applies `name[=argument]` to `side`; Refused: `problem` says why.
WordResult take_rounding_word(SideRecipe& side, const std::string& name, const std::string& argument,
                              std::string& problem);
/// `metric=query` for the side as a whole: H, where it has one, and the weights of a fitted codebook unless they are
/// none. Gradients that nothing uses any more are not clipped. Nothing else changes.
void use_query_metric(SideRecipe& side);
/// The same for a recipe, both sides.
Recipe with_query_metric(Recipe recipe);
/// Words that differ from the defaults. `other`: also those that only the other side can have.
void append_rounding_words(std::vector<std::string>& words, const SideRecipe& side, const SideRecipe* other);

}  // namespace kvq
