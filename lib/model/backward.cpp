#include <kvq/model/backward.h>

#include <algorithm>

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/model/blocked_attention.h>
#include <kvq/model/linear.h>
#include <kvq/model/loss.h>
#include <kvq/model/numeric_check.h>
#include <kvq/model/rope.h>

namespace kvq {

namespace {

/// A layer's graph, cut off from its neighbours: gradients of `result` flow to `hidden` and to what the observer saw.
struct LayerGraph {
  at::Tensor hidden, result;
  at::Tensor query, key, value;
  at::Tensor key_heads, value_heads;  ///< repeated for every query head
  std::vector<at::Tensor> weights;    ///< Model::block_tensors()
};

/// Attention in which every query head has its own copy of its kv head's keys and values, so that there is a gradient
/// for each. One window in one call.
class PerHeadAttention final : public AttentionBackend {
 public:
  explicit PerHeadAttention(const ModelRope& rope) : rope_(rope), tables_(rope) {}
  at::Tensor attend(const AttentionInput& input) override {
    KVQ_ASSERT(input.first_position == 0);
    key = repeated(input.key, input.query.size(1));
    value = repeated(input.value, input.query.size(1));
    RopeTable& table = tables_.of(input.layer);
    return causal_attention(attention_operand(table.apply(input.query, 0), input.bf16),
                            attention_operand(table.apply(key, 0), input.bf16), attention_operand(value, input.bf16), 0,
                            rope_.window_of(input.layer))
        .to(input.query.scalar_type());
  }
  void reset() override { key = value = at::Tensor(); }

  at::Tensor key, value;  ///< of the last call, `[tokens, heads, head_dim]`

 private:
  static at::Tensor repeated(const at::Tensor& x, std::int64_t heads) {
    const std::int64_t tokens = x.size(0), kv_heads = x.size(1), head_dim = x.size(2);
    at::Tensor copies =
        x.unsqueeze(2).expand({tokens, kv_heads, heads / kv_heads, head_dim}).reshape({tokens, heads, head_dim});
    if (copies.requires_grad()) copies.retain_grad();
    return copies;
  }
  ModelRope rope_;
  RopeTables tables_;
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

/// The attention of a run: exact, or with gradients for each query head.
struct Attention {
  ExactAttention exact;
  PerHeadAttention per_head;
  bool split;

  Attention(const ModelConfig& config, bool query_heads)
      : exact(config.kv, config.rope),
        per_head(config.rope),
        split(query_heads && config.kv.heads > config.kv.kv_heads) {}
  AttentionBackend& backend() { return split ? static_cast<AttentionBackend&>(per_head) : exact; }
};

LayerGraph run_layer(Model& model, int layer, const at::Tensor& hidden, Attention& attention, bool weights) {
  const c10::AutoGradMode with_grad(true);
  LayerGraph graph;
  graph.hidden = hidden.detach().requires_grad_(true);
  if (weights) graph.weights = model.block_tensors(layer);
  for (at::Tensor& weight : graph.weights) {
    weight.mutable_grad() = at::Tensor();
    weight.requires_grad_(true);
  }
  Retain retain(graph);
  graph.result = model.layer_forward(layer, graph.hidden, 0, attention.backend(), &retain);
  graph.key_heads = attention.per_head.key;
  graph.value_heads = attention.per_head.value;
  attention.backend().reset();  // a whole window in one call: nothing of it is needed by the next layer
  return graph;
}

/// Gradients by BlockMatrix; the weights are frozen again.
std::vector<at::Tensor> weight_gradients(const BlockShape& shape, std::vector<at::Tensor>& weights) {
  KVQ_ASSERT(weights.size() == 4);  // Model::block_tensors()
  std::vector<at::Tensor> gradients;
  for (at::Tensor& weight : weights) {
    gradients.push_back(weight.grad().detach().to(at::kFloat).contiguous());
    weight.mutable_grad() = at::Tensor();
    weight.requires_grad_(false);
  }
  const std::int64_t query = shape.query_width(), width = shape.kv.width(), inner = shape.intermediate;
  return {gradients[0].narrow(0, 0, query),
          gradients[0].narrow(0, query, width),
          gradients[0].narrow(0, query + width, width),
          gradients[1],
          gradients[2].narrow(0, 0, inner),
          gradients[2].narrow(0, inner, inner),
          gradients[3]};
}

at::Tensor plain(const at::Tensor& tensor) { return tensor.detach().to(at::kFloat).contiguous(); }

int layers_that_fit(const Model& model, std::int64_t tokens, const GradientsWanted& wanted) {
  // What is free once the layers' boundaries and one layer's own graph are in memory; a tenth stays for others.
  const ModelConfig& config = model.config();
  const std::int64_t graph = layer_graph_bytes(config, tokens, wanted);
  const std::int64_t boundaries = std::int64_t{config.kv.layers} * tokens * config.hidden * 4;
  std::int64_t free =
      available_memory_bytes(model.device()) / 10 * 9 - boundaries - 2 * graph - kLogitChunk * config.vocab * 8LL;
  // A GPU has no page cache that would give way to weights, and operations have intermediate results.
  if (model.device() != Device::Cpu) free -= model.weight_bytes_to_come() + device_scratch_bytes(config, tokens);
  return static_cast<int>(std::clamp<std::int64_t>(free / graph, 0, config.kv.layers));
}

}  // namespace

Recompute parse_recompute(const std::string& word) {
  if (word == "auto") return Recompute::Auto;
  if (word == "layer") return Recompute::Layer;
  if (word == "none") return Recompute::None;
  fail(ErrorKind::Usage, fmt::format("--recompute '{}' is unknown; known: auto, layer, none", word));
}

std::int64_t layer_graph_bytes(const ModelConfig& config, std::int64_t tokens, const GradientsWanted& wanted) {
  const std::int64_t query_width = std::int64_t{config.kv.heads} * config.kv.head_dim;
  // Inputs of both norms; Q, K and V; Q and K after RoPE, V apart, attention's result; gate and up.
  std::int64_t per_token = 2LL * config.hidden + 3 * query_width + 4LL * config.kv.width() + 2LL * config.intermediate;
  if (config.post_norms) per_token += 2LL * config.hidden;
  if (config.qk_norm) per_token += query_width + config.kv.width();
  // The inputs of the matrices, and copies of keys (before and after RoPE) and values for every query head.
  if (wanted.weights) per_token += 2LL * config.hidden + query_width + config.intermediate;
  if (wanted.query_heads) per_token += 3 * query_width;
  return tokens * per_token * 4;
}

std::int64_t device_scratch_bytes(const ModelConfig& config, std::int64_t tokens) {
  const std::int64_t scores = std::min(kScoreBytes, std::int64_t{config.kv.heads} * tokens * tokens * 4);
  const std::int64_t widest = std::max<std::int64_t>(config.hidden, 2LL * config.intermediate) * tokens * 4;
  return 4 * scores + 4 * widest + 4 * std::min(kLogitChunk, tokens) * config.vocab * 4;
}

double sequence_gradients(Model& model, const std::vector<std::int32_t>& ids, Recompute recompute,
                          const std::function<void(const LayerGradients&)>& sink, const GradientsWanted& wanted) {
  const ModelConfig& config = model.config();
  const int layers = config.kv.layers;
  const auto tokens = static_cast<std::int64_t>(ids.size());
  if (tokens < 2)
    fail(ErrorKind::Input,
         fmt::format("a sequence of {} predicts none; at least 2 are needed", plural(tokens, "token")));
  const int kept = recompute == Recompute::None    ? layers
                   : recompute == Recompute::Layer ? 0
                                                   : layers_that_fit(model, tokens, wanted);

  Attention attention(config, wanted.query_heads);
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
      graphs[layer] = run_layer(model, layer, hidden, attention, wanted.weights);
      hidden = graphs[layer].result.detach();
    } else {
      const c10::AutoGradMode no_grad(false);
      hidden = model.layer_forward(layer, hidden, 0, attention.backend(), nullptr);
      attention.backend().reset();
    }
  }
  const WindowLoss loss = next_token_loss(model, hidden, ids, true);
  hidden = at::Tensor();
  at::Tensor grad = loss.hidden_grad;
  check_finite(grad, "output", "gradient of the last hidden state");

  for (int layer = layers - 1; layer >= 0; --layer) {
    LayerGraph graph = std::move(graphs[layer]);
    graphs[layer] = {};
    if (!graph.result.defined()) graph = run_layer(model, layer, boundary[layer], attention, wanted.weights);
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
    if (wanted.query_heads) {
      // With one query head a kv head its own gradient is all there is.
      result.key_head_grad = attention.split ? plain(graph.key_heads.grad()) : result.key_grad;
      result.value_head_grad = attention.split ? plain(graph.value_heads.grad()) : result.value_grad;
    }
    if (wanted.weights) result.weight_grad = weight_gradients(config.blocks(), graph.weights);
    graph = {};
    const std::string where = fmt::format("layer {}", layer);
    check_finite(result.key_grad, where, "gradient of key");
    check_finite(result.value_grad, where, "gradient of value");
    sink(result);
  }
  return loss.mean_nll;
}

}  // namespace kvq
