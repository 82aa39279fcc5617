#pragma once
// Codecs of head vectors (kvq/vector/vector_recipe.h, turbo_codec.h) as one side of a recipe.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <kvq/quant/quantizer.h>
#include <kvq/vector/vector_codec.h>

namespace kvq {

/// What is wrong with a side's codec, if anything; with other codebooks there must be none.
std::optional<std::string> vector_problem(const SideRecipe& side);
/// Throws Usage naming recipe and side.
void check_vector_shape(const Recipe& recipe, Side which, int head_dim);

/// Codecs of a layer: one, or one for each kv head.
int codec_count(const SideRecipe& side, int kv_heads);

/// For each kv head its codec, the same for all where they share one; of turbo, too. Throws Mismatch for another number
/// of tables than codec_count(), or tables of turbo that do not fit, Io for tables of another recipe.
std::vector<std::shared_ptr<const VectorCodec>> head_codecs(const SideQuantizer& quantizer);

/// Blocks that a sequence is coded in, with codecs of more than one row. Positions decide: block b holds positions
/// b · block_rows up to the next block's, without sinks. Closed blocks are kept as bytes, the newest one is open. Not
/// thread-safe.
class VectorBlocks {
 public:
  /// `codecs` as head_codecs() gives them.
  explicit VectorBlocks(std::vector<std::shared_ptr<const VectorCodec>> codecs);

  /// Tokens of positions `first_position` on, `[tokens, kv_heads, head_dim]`, which follow those of the call before:
  /// replaced by what decoding gives back. Codecs that need whole blocks get whole blocks. Throws ExactOverflow.
  void append(std::span<float> x, std::int64_t first_position, int threads);

  /// Bytes of each closed block, all kv heads.
  std::vector<std::int64_t> closed_bytes() const;
  /// Of one kv head, for reading.
  const std::vector<std::vector<std::byte>>& closed(int kv_head) const {
    return heads_[static_cast<std::size_t>(kv_head)].closed;
  }
  /// Null where no block is open.
  const OpenBlock* open(int kv_head) const { return heads_[static_cast<std::size_t>(kv_head)].open.get(); }

 private:
  struct Head {
    std::shared_ptr<const VectorCodec> codec;
    std::unique_ptr<OpenBlock> open;
    std::vector<std::vector<std::byte>> closed;
  };
  void append_head(int kv_head, std::span<float> x, std::int64_t first_position);

  std::vector<Head> heads_;
};

}  // namespace kvq
