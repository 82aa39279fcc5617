#pragma once
// What a model is, as read from its file: one description for every supported architecture.

#include <cstdint>
#include <filesystem>
#include <string>

#include <kvq/core/block_matrix.h>
#include <kvq/core/kv_shape.h>

namespace kvq {

/// What multiplies the upper half of an MLP.
enum class Activation {
  Silu,
  GeluTanh,  ///< x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))
};

struct ModelConfig {
  std::string architecture;  ///< name in the registry, e.g. "llama"
  KvShape kv;
  ModelRope rope;
  int hidden = 0;        ///< width of the residual stream
  int intermediate = 0;  ///< width of the MLP
  int vocab = 0;
  std::int64_t context = 0;  ///< longest context the file promises; 0 when it does not say
  double norm_eps = 1e-5;
  bool tied_embeddings = false;  ///< output matrix = embedding matrix
  bool attention_bias = false;   ///< q, k and v projections
  bool output_bias = false;      ///< the attention's output projection
  bool qk_norm = false;          ///< every head of queries and keys is normalised before RoPE
  bool post_norms = false;       ///< what attention and MLP add to the residual stream is normalised
  Activation activation = Activation::Silu;
  double embedding_scale = 1.0;  ///< embeddings are multiplied by it
  /// Queries are multiplied by it, so that attention may divide all scores by √head_dim. Folded into the queries' norm:
  /// 1 for models without one.
  double query_scale = 1.0;
  std::int64_t parameters = 0;

  BlockShape blocks() const { return {kv, hidden, intermediate}; }
};

/// Config alone, without touching weights (for --dry-run). Throws as load_model does.
ModelConfig read_model_config(const std::filesystem::path& path);

}  // namespace kvq
