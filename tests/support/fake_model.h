#pragma once
// A model small enough to compute by hand, and a tokenizer of bytes: tests of what stands on top of a model need no
// file.

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>

#include <kvq/core/rng.h>
#include <kvq/model/model.h>
#include <kvq/text/tokenizer.h>

namespace kvq::test {

/// Uniform in [-scale, scale), the same on every platform.
inline at::Tensor random_tensor(std::vector<std::int64_t> shape, float scale, std::uint64_t seed) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  Rng rng(seed);
  float* values = tensor.mutable_data_ptr<float>();
  for (std::int64_t element = 0; element < tensor.numel(); ++element) {
    values[element] = scale * static_cast<float>(2 * rng.uniform() - 1);
  }
  return tensor;
}

/// Hidden width = heads * head_dim. A layer reads keys and values off the residual stream and adds its attention to it;
/// logits are one matrix product. Public members may be changed by a test.
class FakeModel final : public Model {
 public:
  explicit FakeModel(int vocab = 24, int layers = 2, std::uint64_t seed = 1) {
    config_.architecture = "fake";
    config_.kv = {.layers = layers, .heads = 4, .kv_heads = 2, .head_dim = 4};
    config_.rope.rotary_dim = 4;
    config_.hidden = 16;
    config_.vocab = vocab;
    config_.parameters = 2 * 16 * vocab;
    embedding = random_tensor({vocab, 16}, 1.0f, seed);
    head = random_tensor({16, vocab}, 0.7f, seed + 1);
    for (int layer = 0; layer < layers; ++layer) {
      key_weight.push_back(random_tensor({16, 8}, 0.5f, seed + 10 + static_cast<std::uint64_t>(layer)));
      value_weight.push_back(random_tensor({16, 8}, 0.5f, seed + 20 + static_cast<std::uint64_t>(layer)));
    }
  }

  const ModelConfig& config() const override { return config_; }
  std::string sha256() const override { return std::string(64, 'f'); }
  at::Tensor embed(const std::vector<std::int32_t>& ids) override {
    std::vector<at::Tensor> rows;
    for (std::int32_t id : ids) rows.push_back(embedding[id]);
    return at::stack(rows);
  }
  at::Tensor layer_forward(int layer, const at::Tensor& hidden, std::int64_t first_position,
                           AttentionBackend& attention, KvObserver* observer) override {
    const std::int64_t tokens = hidden.size(0);
    AttentionInput input{layer, first_position, hidden.view({tokens, 4, 4}),
                         at::matmul(hidden, key_weight[layer]).view({tokens, 2, 4}),
                         at::matmul(hidden, value_weight[layer]).view({tokens, 2, 4})};
    if (observer) observer->observe(input);
    ++layer_calls;
    return hidden.add(attention.attend(input).reshape({tokens, 16}));
  }
  void load_layer(int) override {}
  at::Tensor logits(const at::Tensor& hidden) override { return at::matmul(hidden, head); }

  at::Tensor embedding, head;
  std::vector<at::Tensor> key_weight, value_weight;
  int layer_calls = 0;

 private:
  ModelConfig config_;
};

/// One id per byte; id 256 is the BOS token.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    bos_id = 256;
    sha256 = std::string(64, 'b');
  }
  std::vector<std::int32_t> encode(std::string_view text, bool) const override {
    std::vector<std::int32_t> ids;
    for (char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    return ids;
  }
  std::string decode(const std::vector<std::int32_t>& ids) const override {
    std::string text;
    for (std::int32_t id : ids) text += static_cast<char>(id);
    return text;
  }
  int vocab_size() const override { return 257; }
};

}  // namespace kvq::test
