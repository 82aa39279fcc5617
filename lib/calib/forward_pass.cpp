#include <kvq/calib/forward_pass.h>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/model/loss.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace {

class Keep final : public KvObserver {
 public:
  explicit Keep(LayerTensors& tensors) : tensors_(tensors) {}
  void observe(const AttentionInput& input) override {
    tensors_.query = input.query.to(at::kFloat).contiguous();
    tensors_.key = input.key.to(at::kFloat).contiguous();
    tensors_.value = input.value.to(at::kFloat).contiguous();
  }

 private:
  LayerTensors& tensors_;
};

}  // namespace

double sequence_forward(Model& model, const std::vector<std::int32_t>& ids,
                        const std::function<void(const LayerTensors&)>& sink) {
  const c10::AutoGradMode no_grad(false);
  const ModelConfig& config = model.config();
  if (ids.size() < 2)
    fail(ErrorKind::Input,
         fmt::format("a sequence of {} predicts none; at least 2 are needed", plural(ids.size(), "token")));
  ExactAttention attention(config.kv, config.rope);
  at::Tensor hidden = model.embed(ids);
  for (int layer = 0; layer < config.kv.layers; ++layer) {
    LayerTensors tensors;
    tensors.layer = layer;
    Keep keep(tensors);
    hidden = model.layer_forward(layer, hidden, 0, attention, &keep);
    attention.reset();  // a whole window in one call: nothing of it is needed by the next layer
    sink(tensors);
  }
  return next_token_loss(model, hidden, ids, false).mean_nll;
}

}  // namespace kvq
