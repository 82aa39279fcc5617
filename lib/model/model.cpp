#include <kvq/model/model.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/model/block.h>
#include <kvq/model/elementwise.h>
#include <kvq/model/memory.h>
#include <kvq/model/weights.h>

namespace kvq {

namespace {

class TransformerModel final : public Model {
 public:
  TransformerModel(ModelSource source, LinearMode mode, std::int64_t budget)
      : mode_(mode), weights_(std::move(source), mode, budget), config_(weights_.source().config) {}

  const ModelConfig& config() const override { return config_; }

  std::string sha256() const override {
    const auto& files = weights_.source().files;
    if (files.size() == 1 && files.front() == weights_.source().path) return sha256_of_file(files.front());
    std::string listing;
    for (const auto& file : files) listing += fmt::format("{} {}\n", file.filename().string(), sha256_of_file(file));
    return sha256_of(listing);
  }

  at::Tensor embed(const std::vector<std::int32_t>& ids) override {
    for (std::size_t token = 0; token < ids.size(); ++token) {
      if (ids[token] < 0 || ids[token] >= config_.vocab) {
        fail(ErrorKind::Mismatch,
             fmt::format("token {} has id {}, but the model's vocabulary is 0 to {}: text was tokenized "
                         "for another model",
                         token, ids[token], config_.vocab - 1));
      }
    }
    return weights_.embed(ids);
  }

  at::Tensor layer_forward(int layer, const at::Tensor& hidden, std::int64_t first_position,
                           AttentionBackend& attention, KvObserver* observer) override {
    return block_forward(config_, mode_, weights_.layer(layer), layer, hidden, first_position, attention, observer);
  }

  void load_layer(int layer) override { weights_.layer(layer); }

  at::Tensor logits(const at::Tensor& hidden) override {
    return linear(mode_, rms_norm(hidden, weights_.output_norm(), config_.norm_eps), weights_.output(), {});
  }

 private:
  LinearMode mode_;
  WeightStore weights_;
  const ModelConfig& config_;  ///< weights_.source().config
};

}  // namespace

std::unique_ptr<Model> load_model(const std::filesystem::path& path, const ModelOptions& options) {
  ModelSource source = open_model_source(path);
  const std::int64_t budget =
      options.weight_budget_bytes >= 0 ? options.weight_budget_bytes : available_memory_bytes() / 2;
  return std::make_unique<TransformerModel>(std::move(source), linear_mode(options.dtype), budget);
}

}  // namespace kvq
