#pragma once
// The matrices of a model's blocks, read from its file or given by somebody else (quantized weights).

#include <filesystem>
#include <memory>
#include <span>

#include <kvq/core/block_matrix.h>
#include <kvq/model/model.h>
#include <kvq/model/model_source.h>

namespace kvq {

/// Gives the matrices that stand in the place of a model's own. Called from one thread, whenever a layer is expanded.
class BlockWeights {
 public:
  virtual ~BlockWeights() = default;
  /// `out` is `[rows, columns]` fp32, rows of Q and K in Hugging Face's order.
  virtual void read(int layer, BlockMatrix matrix, std::span<float> out) = 0;
};

/// A matrix as the model's file has it, in the same form.
void read_block_matrix(const ModelSource& source, int layer, BlockMatrix matrix, std::span<float> out);

/// The model of `path` with other matrices in its blocks. Embeddings, output head and identity are those of `base`, a
/// model of the same path and on the same device, which must outlive the result; norms and biases are the file's.
/// Throws as load_model.
std::unique_ptr<Model> load_model_with(const std::filesystem::path& path, const ModelOptions& options,
                                       std::shared_ptr<BlockWeights> matrices, Model& base);

}  // namespace kvq
