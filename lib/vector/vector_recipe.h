#pragma once
// How the rows of a matrix are coded, in words, and the codec that the words stand for.
//
//   scalarB     one scale for each row and one codebook of 2^B levels, B from 1 to 8        (scalar_codec.h)
//   deltaB      the same of the difference from the row before                               (delta_codec.h)
//   pq          product quantization                                                        (product_codec.h)
//
// followed by `:` and words, parted by commas:
//
//   scale=norm|max       scalar, delta: what of a row its scale is; norm
//   levels=fit|even      scalar, delta: fitted to the sample, or evenly over its range; fit
//   anchor=N             delta: a row coded by itself every N rows; 64
//   threshold=T          delta: and wherever |δ| > T |x|; 1
//   abits=B              delta: bits of those rows; as others
//   m=M  bits=B          pq: M subspaces of 2^B centroids; 16 and 8
//   norm                 pq: rows are divided by their norm, which takes 16 bits
//   lowrank=R            scalar, pq: the error is corrected with rank R over pages           (low_rank_codec.h)
//   fbits=B              with lowrank: bits of its factors, 2 to 8; 8
//   entropy=huffman|rans scalar: codes are entropy coded in pages                            (entropy_codec.h)
//   page=N               with lowrank or entropy: rows of a page; 128
//
// A further method of single rows (a rotation before the codebook, say) is a VectorMethod with a head in
// vector_recipe.cpp and a case in train_vector_tables() and make_codec() (vector_recipe_codec.cpp); lowrank and delta
// take any codec whose rows stand by themselves.

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/vector/scalar_codec.h>

namespace kvq {

enum class VectorMethod { Scalar, Delta, Product };
enum class EntropyWord { None, Huffman, Rans };

struct VectorRecipe {
  VectorMethod method = VectorMethod::Scalar;
  int bits = 4;
  RowScale scale = RowScale::Norm;
  bool even_levels = false;
  int anchor = 64;
  double threshold = 1;
  int anchor_bits = 0;  ///< 0: `bits`
  int subspaces = 16;
  bool norm = false;
  int low_rank = 0;  ///< 0: none
  int factor_bits = 8;
  EntropyWord entropy = EntropyWord::None;
  int page = 128;
  bool operator==(const VectorRecipe&) const = default;
};

/// Throws Usage naming the word, its value and the known ones, and for words that do not go together.
VectorRecipe parse_vector_recipe(const std::string& text);

/// parse_vector_recipe(short_form(r)) == r, defaults left out.
std::string short_form(const VectorRecipe& recipe);
/// The same with all words that say something, so that it stands whatever defaults become.
std::string long_form(const VectorRecipe& recipe);

/// The parts of the short form: "delta3", and what follows its colon.
std::string vector_head(const VectorRecipe& recipe);
std::vector<std::string> vector_words(const VectorRecipe& recipe);
/// Whether `text` is such a head: scalarB, deltaB, pq; the words that its method takes, for messages, and whether
/// `name` is one of them.
bool is_vector_head(std::string_view text);
std::string_view known_vector_words(const VectorRecipe& recipe);
bool is_vector_word(const VectorRecipe& recipe, std::string_view name);

/// Throws Usage for rows that the recipe cannot cut.
void check_vector_dim(const VectorRecipe& recipe, int dim);

/// What is learned from: rows like those to come, consecutive for delta.
struct VectorSample {
  std::span<const float> x;                ///< `[rows, dim]`, finite
  std::span<const float> row_weights;      ///< `[rows]` or empty; pq only
  std::span<const float> channel_weights;  ///< `[dim]` or empty; pq only
  int threads = 1;
};

/// What a codec needs beside its recipe, as bytes for a file: levels, centroids, entropy tables. Throws Usage for a
/// recipe that does not suit `dim`, and for weights that it cannot use.
std::vector<std::byte> train_vector_tables(const VectorRecipe& recipe, int dim, const VectorSample& sample);

/// Throws Io for tables that train_vector_tables() does not make of this recipe and dim.
std::unique_ptr<VectorCodec> make_codec(const VectorRecipe& recipe, int dim, std::span<const std::byte> tables);

/// Trained and made at once.
std::unique_ptr<VectorCodec> make_codec(const VectorRecipe& recipe, int dim, const VectorSample& sample);

}  // namespace kvq
