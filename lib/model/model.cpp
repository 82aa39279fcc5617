#include <kvq/model/model.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/block.h>
#include <kvq/model/block_weights.h>
#include <kvq/model/elementwise.h>
#include <kvq/model/threads.h>
#include <kvq/model/weights.h>

namespace kvq {

namespace {

std::int64_t budget_of(const ModelOptions& options) {
  return options.weight_budget_bytes >= 0 ? options.weight_budget_bytes : available_memory_bytes(options.device) / 2;
}

class TransformerModel : public Model {
 public:
  TransformerModel(ModelSource source, const ModelOptions& options, std::shared_ptr<BlockWeights> replaced = nullptr)
      : mode_(linear_mode(options.dtype, options.device)),
        device_(options.device),
        weights_(std::move(source), mode_, budget_of(options), std::move(replaced), device_),
        config_(weights_.source().config) {}

  const ModelConfig& config() const override { return config_; }
  Device device() const override { return device_; }
  std::int64_t weight_bytes_to_come() const override { return weights_.bytes_to_come(); }

  std::string sha256() const override { return model_sha256(weights_.source()); }

  at::Tensor embed(const std::vector<std::int32_t>& ids) override {
    for (std::size_t token = 0; token < ids.size(); ++token) {
      if (ids[token] < 0 || ids[token] >= config_.vocab) {
        fail(ErrorKind::Mismatch,
             fmt::format("token {} has id {}, but the model's vocabulary is 0 to {}: text was tokenized "
                         "for another model",
                         token, ids[token], config_.vocab - 1));
      }
    }
    const at::Tensor rows = weights_.embed(ids);
    return device_ == Device::Cpu ? rows : rows.to(torch_device(device_));
  }

  at::Tensor layer_forward(int layer, const at::Tensor& hidden, std::int64_t first_position,
                           AttentionBackend& attention, KvObserver* observer) override {
    return block_forward(config_, mode_, weights_.layer(layer), layer, hidden, first_position, attention, observer);
  }

  void load_layer(int layer) override { weights_.layer(layer); }

  std::vector<at::Tensor> block_tensors(int layer) override {
    const LayerWeights& weights = weights_.layer(layer);
    return {weights.qkv, weights.o, weights.gate_up, weights.down};
  }

  at::Tensor logits(const at::Tensor& hidden) override {
    return linear(mode_, rms_norm(hidden, weights_.output_norm(), config_.norm_eps), weights_.output(), {});
  }

 private:
  LinearMode mode_;
  Device device_;
  WeightStore weights_;
  const ModelConfig& config_;  ///< weights_.source().config
};

/// Other matrices in the blocks; what comes before and after them is the base's.
class DerivedModel final : public TransformerModel {
 public:
  DerivedModel(ModelSource source, const ModelOptions& options, std::shared_ptr<BlockWeights> matrices, Model& base)
      : TransformerModel(std::move(source), options, std::move(matrices)), base_(base) {}
  at::Tensor embed(const std::vector<std::int32_t>& ids) override { return base_.embed(ids); }
  at::Tensor logits(const at::Tensor& hidden) override { return base_.logits(hidden); }

 private:
  Model& base_;
};

}  // namespace

std::vector<at::Tensor> Model::block_tensors(int) { return {}; }

std::unique_ptr<Model> load_model(const std::filesystem::path& path, const ModelOptions& options) {
  settle_vector_functions();
  ModelSource source = open_model_source(path);
  return std::make_unique<TransformerModel>(std::move(source), options);
}

std::unique_ptr<Model> load_model_with(const std::filesystem::path& path, const ModelOptions& options,
                                       std::shared_ptr<BlockWeights> matrices, Model& base) {
  ModelSource source = open_model_source(path);
  KVQ_ASSERT(source.config.blocks() == base.config().blocks() && options.device == base.device());
  return std::make_unique<DerivedModel>(std::move(source), options, std::move(matrices), base);
}

}  // namespace kvq
