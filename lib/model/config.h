#pragma once
// What a model is, as read from its file: one description for every supported architecture.

#include <cstdint>
#include <filesystem>
#include <string>

#include <kvq/core/block_matrix.h>
#include <kvq/core/kv_shape.h>

namespace kvq {

struct ModelConfig {
  std::string architecture;  ///< name in the registry, e.g. "llama"
  KvShape kv;
  RopeParams rope;
  int hidden = 0;        ///< width of the residual stream
  int intermediate = 0;  ///< width of the MLP
  int vocab = 0;
  std::int64_t context = 0;  ///< longest context the file promises; 0 when it does not say
  double norm_eps = 1e-5;
  bool tied_embeddings = false;  ///< output matrix = embedding matrix
  bool attention_bias = false;   ///< q, k, v and output projections
  std::int64_t parameters = 0;

  BlockShape blocks() const { return {kv, hidden, intermediate}; }
};

/// Config alone, without touching weights (for --dry-run). Throws as load_model does.
ModelConfig read_model_config(const std::filesystem::path& path);

}  // namespace kvq
