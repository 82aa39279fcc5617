// Chunked cross-entropy, its gradient, and the loops behind it.
#include <limits>

#include <ATen/Context.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include "model_support.h"
#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/model/backward.h>
#include <kvq/model/loss.h>
#include <kvq/model/numeric_check.h>
#include <kvq/model/softmax.h>

using namespace kvq;
using namespace kvq::test;

namespace {

at::Tensor random(std::vector<std::int64_t> shape, std::uint64_t seed) {
  at::manual_seed(seed);
  return at::randn(shape, at::TensorOptions().dtype(at::kFloat));
}

std::unique_ptr<Model> tiny() { return load_model(kSource / "tests/data/tiny/gqa-bias/model.gguf", {}); }

}  // namespace

TEST_CASE("Cross-entropy of rows equals log-softmax in double, for every length around the vector width") {
  KVQ_BOTH_WAYS();
  for (std::int64_t vocab : {1, 2, 15, 16, 17, 511, 512, 513, 5000}) {
    const at::Tensor logits = random({3, vocab}, vocab).mul(20.0);
    const std::vector<std::int32_t> targets = {0, static_cast<std::int32_t>(vocab / 2),
                                               static_cast<std::int32_t>(vocab - 1)};
    const at::Tensor exact = logits.to(at::kDouble).log_softmax(1);
    std::vector<double> nll(3), with_grad(3);
    cross_entropy(logits, targets, nll);
    at::Tensor grad = logits.clone();
    cross_entropy_with_gradient(grad, targets, 0.25, with_grad);
    at::Tensor expected = exact.exp();
    for (int row = 0; row < 3; ++row) {
      CHECK(nll[row] == Approx(-exact[row][targets[row]].item<double>()).margin(1e-6));
      CHECK(with_grad[row] == nll[row]);
      expected[row][targets[row]] -= 1.0;
    }
    CHECK(max_abs_difference(grad.to(at::kDouble), expected.mul(0.25)) <= 1e-7);
  }
}

TEST_CASE("Extreme logits: no overflow, and NaN is not lost") {
  KVQ_BOTH_WAYS();
  std::vector<double> nll(1);
  at::Tensor logits = random({1, 40}, 1).mul(1e30);
  logits[0][7] = 3e38f;
  cross_entropy(logits, std::vector<std::int32_t>{7}, nll);
  CHECK(nll[0] == Approx(0.0).margin(1e-9));
  for (int place : {0, 7, 39}) {
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      at::Tensor spoiled = random({1, 40}, 2);
      spoiled[0][place] = bad;
      cross_entropy(spoiled, std::vector<std::int32_t>{3}, nll);
      CHECK_FALSE(std::isfinite(nll[0]));
    }
  }
}

TEST_CASE("Loss of a window over several chunks of logits equals the loss of all logits at once, gradient too") {
  KVQ_BOTH_WAYS();
  const auto model = tiny();
  std::vector<std::int32_t> ids;
  for (int token = 0; token < 600; ++token)
    ids.push_back((token * token + 3 * token) % 320);  // chunks of 256, 256 and 87
  const at::Tensor hidden = random({600, 32}, 3);
  const WindowLoss loss = next_token_loss(*model, hidden, ids, true);

  const at::Tensor leaf = hidden.clone().requires_grad_(true);
  const at::Tensor scores = model->logits(leaf).to(at::kDouble).log_softmax(1);
  at::Tensor total = scores[0][ids[1]];
  for (int token = 1; token < 599; ++token) total = total.add(scores[token][ids[token + 1]]);
  const at::Tensor mean = total.neg().div(599.0);
  mean.backward();
  CHECK(loss.mean_nll == Approx(mean.item<double>()).epsilon(1e-6));
  CHECK(relative_error(loss.hidden_grad, leaf.grad()) <= 1e-5);
  CHECK(loss.hidden_grad[599].abs().max().item<double>() == 0.0);  // the last token predicts nothing
  CHECK(next_token_loss(*model, hidden, ids, false).mean_nll == loss.mean_nll);
}

TEST_CASE("NaN and Inf are reported with tensor and place") {
  KVQ_BOTH_WAYS();
  at::Tensor key = random({6, 2, 4}, 4);
  CHECK_NOTHROW(check_finite(key, "layer 3", "key"));
  key[4][1][2] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH(check_finite(key, "layer 3", "key", 100),
                    ContainsSubstring("layer 3: key of token 104, head 1, channel 2 is inf"));
  at::Tensor hidden = random({6, 9}, 5);
  hidden[5][8] = std::numeric_limits<float>::quiet_NaN();
  CHECK_THROWS_WITH(check_finite(hidden, "layer 0", "output"), ContainsSubstring("token 5, channel 8 is nan"));
  CHECK_NOTHROW(check_finite(hidden.narrow(1, 0, 8), "layer 0", "output"));  // a slice beside it
}

TEST_CASE("A block fed with NaN stops with layer, tensor and token") {
  KVQ_BOTH_WAYS();
  const auto model = tiny();
  ExactAttention attention(model->config().kv, model->config().rope);
  at::Tensor hidden = model->embed({1, 2, 3});
  hidden[1][0] = std::numeric_limits<float>::quiet_NaN();
  const c10::NoGradGuard no_grad;
  CHECK_THROWS_WITH(model->layer_forward(1, hidden, 0, attention, nullptr),
                    ContainsSubstring("layer 1: query of token 1"));
  hidden = random({3, 32}, 6);
  hidden[1][1] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_WITH(next_token_loss(*model, hidden, {1, 2, 3}, false), ContainsSubstring("logits of token 1"));
}

TEST_CASE("One token predicts nothing and is refused") {
  const auto model = tiny();
  CHECK_THROWS_WITH(sequence_gradients(*model, {1}, Recompute::Auto, [](const LayerGradients&) {}),
                    ContainsSubstring("at least 2"));
}
