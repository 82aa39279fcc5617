#include <kvq/model/backward.h>

#include <algorithm>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/model/loss.h>
#include <kvq/model/memory.h>
#include <kvq/model/numeric_check.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace {

/// A layer's graph, cut off from its neighbours: gradients of `result` flow to `hidden` and to what the observer saw.
struct LayerGraph {
  at::Tensor hidden, result;
  at::Tensor query, key, value;
};

/// Keeps the tensors of the layer that is running, and their gradients later on.
class Retain final : public KvObserver {
 public:
  explicit Retain(LayerGraph& graph) : graph_(graph) {}
  void observe(const AttentionInput& input) override {
    graph_.query = input.query;
    graph_.key = input.key;
    graph_.value = input.value;
    graph_.key.retain_grad();
    graph_.value.retain_grad();
  }

 private:
  LayerGraph& graph_;
};

LayerGraph run_layer(Model& model, int layer, const at::Tensor& hidden, AttentionBackend& attention) {
  const c10::AutoGradMode with_grad(true);
  LayerGraph graph;
  graph.hidden = hidden.detach().requires_grad_(true);
  Retain retain(graph);
  graph.result = model.layer_forward(layer, graph.hidden, 0, attention, &retain);
  attention.reset();  // a whole window in one call: nothing of it is needed by the next layer
  return graph;
}

at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().to(at::kFloat).contiguous(); }

int layers_that_fit(const ModelConfig& config, std::int64_t tokens) {
  // What is free once the layers' boundaries and one layer's own graph are in memory; a tenth stays for others.
  const std::int64_t graph = layer_graph_bytes(config, tokens);
  const std::int64_t boundaries = std::int64_t{config.kv.layers} * tokens * config.hidden * 4;
  const std::int64_t free =
      available_memory_bytes() / 10 * 9 - boundaries - 2 * graph - kLogitChunk * config.vocab * 8LL;
  return static_cast<int>(std::clamp<std::int64_t>(free / graph, 0, config.kv.layers));
}

}  // namespace

Recompute parse_recompute(const std::string& word) {
  if (word == "auto") return Recompute::Auto;
  if (word == "layer") return Recompute::Layer;
  if (word == "none") return Recompute::None;
  fail(ErrorKind::Usage, fmt::format("--recompute '{}' is unknown; known: auto, layer, none", word));
}

std::int64_t layer_graph_bytes(const ModelConfig& config, std::int64_t tokens) {
  const std::int64_t query_width = std::int64_t{config.kv.heads} * config.kv.head_dim;
  // Inputs of both norms; Q, K and V; Q and K after RoPE, V apart, attention's result; gate and up.
  const std::int64_t per_token =
      2LL * config.hidden + 3 * query_width + 4LL * config.kv.width() + 2LL * config.intermediate;
  return tokens * per_token * 4;
}

double sequence_gradients(Model& model, const std::vector<std::int32_t>& ids, Recompute recompute,
                          const std::function<void(const LayerGradients&)>& sink) {
  const ModelConfig& config = model.config();
  const int layers = config.kv.layers;
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens < 2)
    fail(ErrorKind::Input,
         fmt::format("a sequence of {} predicts none; at least 2 are needed", plural(tokens, "token")));
  const int kept = recompute == Recompute::None    ? layers
                   : recompute == Recompute::Layer ? 0
                                                   : layers_that_fit(config, tokens);

  ExactAttention attention(config.kv, config.rope);
  std::vector<at::Tensor> boundary(layers);  // input of each layer
  std::vector<LayerGraph> graphs(layers);
  at::Tensor hidden;
  {
    const c10::AutoGradMode no_grad(false);
    hidden = model.embed(ids);
  }
  for (int layer = 0; layer < layers; ++layer) {
    boundary[layer] = hidden;
    // The last layers keep their graphs: they are the first to be used and gone on the way back.
    if (layer >= layers - kept) {
      graphs[layer] = run_layer(model, layer, hidden, attention);
      hidden = graphs[layer].result.detach();
    } else {
      const c10::AutoGradMode no_grad(false);
      hidden = model.layer_forward(layer, hidden, 0, attention, nullptr);
      attention.reset();
    }
  }
  const WindowLoss loss = next_token_loss(model, hidden, ids, true);
  hidden = at::Tensor();
  at::Tensor grad = loss.hidden_grad;
  check_finite(grad, "output", "gradient of the last hidden state");

  for (int layer = layers - 1; layer >= 0; --layer) {
    LayerGraph graph = std::move(graphs[layer]);
    graphs[layer] = {};
    if (!graph.result.defined()) graph = run_layer(model, layer, boundary[layer], attention);
    boundary[layer] = at::Tensor();
    graph.result.backward(grad);
    grad = graph.hidden.grad();
    LayerGradients result;
    result.layer = layer;
    result.query = plain(graph.query);
    result.key = plain(graph.key);
    result.value = plain(graph.value);
    result.key_grad = plain(graph.key.grad());
    result.value_grad = plain(graph.value.grad());
    graph = {};
    const std::string where = fmt::format("layer {}", layer);
    check_finite(result.key_grad, where, "gradient of key");
    check_finite(result.value_grad, where, "gradient of value");
    sink(result);
  }
  return loss.mean_nll;
}

}  // namespace kvq
