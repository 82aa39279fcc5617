// RoPE and causal attention against plain loops in double.
#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include "model_support.h"
#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/model/rope.h>

using namespace kvq;
using namespace kvq::test;

namespace {

at::Tensor random(std::vector<std::int64_t> shape, std::uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat));
}

/// softmax(q·k / sqrt(d)) v over the keys that query t of `first_position` may see, one number at a time.
at::Tensor plain_attention(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values,
                           std::int64_t first_position, std::int64_t window = 1 << 20) {
  at::Tensor result = query.clone().zero_();
  const std::int64_t group = query.size(1) / keys.size(1), width = query.size(2);
  const auto q = query.accessor<float, 3>(), k = keys.accessor<float, 3>(), v = values.accessor<float, 3>();
  auto out = result.accessor<float, 3>();
  for (std::int64_t token = 0; token < query.size(0); ++token) {
    for (std::int64_t head = 0; head < query.size(1); ++head) {
      const std::int64_t kv_head = head / group, seen = first_position + token + 1;
      std::vector<double> weight(seen);
      double total = 0;
      const std::int64_t unseen = std::max<std::int64_t>(0, seen - window);
      for (std::int64_t key = unseen; key < seen; ++key) {
        double dot = 0;
        for (std::int64_t channel = 0; channel < width; ++channel) {
          dot += static_cast<double>(q[token][head][channel]) * k[key][kv_head][channel];
        }
        weight[key] = std::exp(dot / std::sqrt(static_cast<double>(width)));
        total += weight[key];
      }
      for (std::int64_t channel = 0; channel < width; ++channel) {
        double sum = 0;
        for (std::int64_t key = unseen; key < seen; ++key) sum += weight[key] / total * v[key][kv_head][channel];
        out[token][head][channel] = static_cast<float>(sum);
      }
    }
  }
  return result;
}

}  // namespace

TEST_CASE("Causal attention equals plain loops for MHA, GQA and MQA, with and without a prefix") {
  KVQ_BOTH_WAYS();
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{{4, 4}, {6, 2}, {3, 1}}) {
    for (const auto& [first, tokens] : std::vector<std::pair<int, int>>{{0, 1}, {0, 37}, {50, 1}, {50, 7}, {20, 300}}) {
      INFO(heads << " heads, " << kv_heads << " kv heads, " << tokens << " tokens at " << first);
      const at::Tensor q = random({tokens, heads, 16}, 1), k = random({first + tokens, kv_heads, 16}, 2),
                       v = random({first + tokens, kv_heads, 16}, 3);
      const at::Tensor found = causal_attention(q, k, v, first);
      CHECK(max_abs_difference(found, plain_attention(q, k, v, first)) <= 2e-6);
    }
  }
}

TEST_CASE("Attention over a window equals plain loops, and so do its gradients") {
  KVQ_BOTH_WAYS();
  for (const std::int64_t window : {1, 5, 64, 128, 200, 319, 320}) {
    for (const auto& [first, tokens] :
         std::vector<std::pair<int, int>>{{0, 1}, {0, 320}, {300, 1}, {50, 7}, {20, 300}}) {
      INFO("window " << window << ", " << tokens << " tokens at " << first);
      const at::Tensor q = random({tokens, 4, 16}, 1), k = random({first + tokens, 2, 16}, 2),
                       v = random({first + tokens, 2, 16}, 3);
      const at::Tensor found = causal_attention(q, k, v, first, window);
      CHECK(max_abs_difference(found, plain_attention(q, k, v, first, window)) <= 2e-6);
    }
  }
  // d (attention of token t) / d key and value is 0 beyond the window, and there is one within it.
  const c10::AutoGradMode with_grad(true);
  const at::Tensor q = random({150, 2, 8}, 4), k = random({150, 1, 8}, 5).requires_grad_(true),
                   v = random({150, 1, 8}, 6).requires_grad_(true);
  causal_attention(q, k, v, 0, 20).narrow(0, 140, 1).sum().backward();
  for (const at::Tensor& grad : {k.grad(), v.grad()}) {
    CHECK(grad.narrow(0, 0, 121).abs().max().item<float>() == 0.0f);
    CHECK(grad.narrow(0, 121, 20).abs().amin({0, 1, 2}).item<float>() > 0.0f);
    CHECK(grad.narrow(0, 141, 9).abs().max().item<float>() == 0.0f);
  }
}

TEST_CASE("Head sizes that are no power of two are attended alike") {
  KVQ_BOTH_WAYS();
  for (int head_dim : {2, 80, 96, 100}) {
    const at::Tensor q = random({19, 2, head_dim}, 4), k = random({19, 1, head_dim}, 5),
                     v = random({19, 1, head_dim}, 6);
    CHECK(max_abs_difference(causal_attention(q, k, v, 0), plain_attention(q, k, v, 0)) <= 3e-6);
  }
}

TEST_CASE("RoPE turns pair (j, j + d/2) by position times inverse frequency, also far out") {
  KVQ_BOTH_WAYS();
  RopeParams params{.kind = "linear", .theta = 500.0, .rotary_dim = 6, .factor = 2.0};
  RopeTable rope(params);
  const at::Tensor x = random({3, 2, 8}, 7);
  const std::int64_t first = 130'000;
  const at::Tensor turned = rope.apply(x, first);
  for (int token = 0; token < 3; ++token) {
    for (int head = 0; head < 2; ++head) {
      for (int pair = 0; pair < 3; ++pair) {
        const double angle = static_cast<double>(first + token) / 2.0 * std::pow(500.0, -pair / 3.0);
        const double a = x[token][head][pair].item<double>(), b = x[token][head][pair + 3].item<double>();
        CHECK(turned[token][head][pair].item<double>() ==
              Approx(a * std::cos(angle) - b * std::sin(angle)).margin(1e-6));
        CHECK(turned[token][head][pair + 3].item<double>() ==
              Approx(b * std::cos(angle) + a * std::sin(angle)).margin(1e-6));
      }
      CHECK(turned[token][head][6].equal(x[token][head][6]));  // beyond rotary_dim nothing turns
      CHECK(turned[token][head][7].equal(x[token][head][7]));
    }
  }
}

TEST_CASE("The gradient of RoPE is the turn back") {
  KVQ_BOTH_WAYS();
  RopeTable rope({.theta = 10000.0, .rotary_dim = 8});
  const at::Tensor x = random({5, 2, 8}, 8).requires_grad_(true), grad = random({5, 2, 8}, 9);
  at::Tensor turned = rope.apply(x, 11);
  turned.backward(grad);
  // Turning is orthogonal: turned(x.grad) must be grad.
  const c10::NoGradGuard no_grad;
  CHECK(max_abs_difference(rope.apply(x.grad(), 11), grad) <= 1e-6);
}

TEST_CASE("RoPE accepts slices of a wider tensor and keeps bf16") {
  KVQ_BOTH_WAYS();
  RopeTable rope({.theta = 10000.0, .rotary_dim = 8});
  const at::Tensor wide = random({4, 48}, 10);
  const at::Tensor slice = wide.narrow(1, 16, 16).view({4, 2, 8});
  CHECK(rope.apply(slice, 3).equal(rope.apply(slice.contiguous(), 3)));
  CHECK(rope.apply(slice.to(at::kBFloat16), 3).scalar_type() == at::kBFloat16);
}

TEST_CASE("In bf16, attention multiplies rounded operands and answers in fp32") {
  KVQ_BOTH_WAYS();
  const KvShape shape{.layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 16};
  const RopeParams params{.theta = 10000.0, .rotary_dim = 16};
  const at::Tensor q = random({40, 4, 16}, 14), k = random({40, 2, 16}, 15), v = random({40, 2, 16}, 16);
  RopeTable rope(params);
  const auto rounded = [](const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kFloat); };
  const at::Tensor wanted = plain_attention(rounded(rope.apply(q, 0)), rounded(rope.apply(k, 0)), rounded(v), 0);
  ExactAttention cache(shape, params);
  std::int64_t first = 0;
  for (const std::int64_t count : {25, 14, 1}) {
    const at::Tensor answer = cache.attend({.layer = 0,
                                            .first_position = first,
                                            .query = q.narrow(0, first, count),
                                            .key = k.narrow(0, first, count),
                                            .value = v.narrow(0, first, count),
                                            .bf16 = true});
    CHECK(answer.scalar_type() == at::kFloat);
    // Weights and answer may be rounded, too, each by at most 2^-9 of themselves.
    CHECK(max_abs_difference(answer, wanted.narrow(0, first, count)) <= 2 * 0.002 * v.abs().max().item<double>());
    first += count;
  }
}

TEST_CASE("Layers that see a window have their own angles") {
  KVQ_BOTH_WAYS();
  const KvShape shape{.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 8};
  const RopeParams everywhere{.theta = 1e6, .rotary_dim = 8}, local{.theta = 100.0, .rotary_dim = 8};
  ModelRope rope(everywhere);
  rope.local = local;
  rope.window = 6;
  rope.is_local = {1, 0};
  CHECK(rope.first_seen(0, 5) == 0);
  CHECK(rope.first_seen(0, 6) == 1);
  CHECK(rope.first_seen(1, 6) == 0);
  const at::Tensor q = random({40, 4, 8}, 17), k = random({40, 2, 8}, 18), v = random({40, 2, 8}, 19);
  for (int layer = 0; layer < 2; ++layer) {
    RopeTable table(layer == 0 ? local : everywhere);
    const at::Tensor wanted = plain_attention(table.apply(q, 0), table.apply(k, 0), v, 0, layer == 0 ? 6 : 40);
    for (const int step : {40, 7, 1}) {
      ExactAttention cache(shape, rope);
      for (std::int64_t first = 0; first < 40; first += step) {
        const std::int64_t count = std::min<std::int64_t>(step, 40 - first);
        const at::Tensor answer = cache.attend({.layer = layer,
                                                .first_position = first,
                                                .query = q.narrow(0, first, count),
                                                .key = k.narrow(0, first, count),
                                                .value = v.narrow(0, first, count)});
        CHECK(max_abs_difference(answer, wanted.narrow(0, first, count)) <= 2e-6);
      }
    }
  }
}

TEST_CASE("The exact cache: any cut into calls gives the same answers, reset forgets") {
  KVQ_BOTH_WAYS();
  const KvShape shape{.layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 8};
  const RopeParams params{.theta = 10000.0, .rotary_dim = 8};
  const at::Tensor q = random({40, 4, 8}, 11), k = random({40, 2, 8}, 12), v = random({40, 2, 8}, 13);
  ExactAttention cache(shape, params);
  const auto run = [&](const std::vector<int>& cuts) {
    std::vector<at::Tensor> answers;
    std::int64_t first = 0;
    for (int count : cuts) {
      answers.push_back(cache.attend({.layer = 1,
                                      .first_position = first,
                                      .query = q.narrow(0, first, count),
                                      .key = k.narrow(0, first, count),
                                      .value = v.narrow(0, first, count)}));
      first += count;
    }
    cache.reset();
    return at::cat(answers, 0);
  };
  const at::Tensor whole = run({40});
  CHECK(max_abs_difference(run(std::vector<int>(40, 1)), whole) <= 1e-6);
  CHECK(max_abs_difference(run({7, 7, 7, 7, 7, 5}), whole) <= 1e-6);
  CHECK(max_abs_difference(run({39, 1}), whole) <= 1e-6);
}
