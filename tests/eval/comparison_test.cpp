#include "support/both_ways.h"
#include "support/catch.h"
#include "support/fake_model.h"

#include <cmath>
#include <limits>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/eval/comparison.h>
#include <kvq/model/loss.h>

using namespace kvq;
using kvq::test::FakeModel;
using kvq::test::random_tensor;

namespace {

/// Log-probabilities of every token by plain double loops.
std::vector<std::vector<double>> log_probabilities(const FakeModel& model, const at::Tensor& hidden) {
  const std::int64_t tokens = hidden.size(0), width = hidden.size(1), vocab = model.head.size(1);
  const float* h = hidden.const_data_ptr<float>();
  const float* w = model.head.const_data_ptr<float>();
  std::vector<std::vector<double>> result;
  for (std::int64_t token = 0; token < tokens; ++token) {
    std::vector<double> logits(vocab, 0.0);
    double largest = -1e300, sum = 0;
    for (std::int64_t word = 0; word < vocab; ++word) {
      for (std::int64_t channel = 0; channel < width; ++channel) {
        logits[word] += static_cast<double>(h[token * width + channel]) * w[channel * vocab + word];
      }
      largest = std::max(largest, logits[word]);
    }
    for (double logit : logits) sum += std::exp(logit - largest);
    for (double& logit : logits) logit -= largest + std::log(sum);
    result.push_back(std::move(logits));
  }
  return result;
}

std::size_t top(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

}  // namespace

TEST_CASE("Loss, divergence and agreement equal plain double loops, across chunk borders") {
  KVQ_BOTH_WAYS();
  FakeModel model(37);
  const std::int64_t tokens = 2 * kLogitChunk + 45;
  const at::Tensor exact = random_tensor({tokens, 16}, 2.0f, 5);
  const std::vector<at::Tensor> hidden = {exact, exact.add(random_tensor({tokens, 16}, 0.3f, 6)),
                                          exact.add(random_tensor({tokens, 16}, 1.5f, 7))};
  std::vector<std::int32_t> ids;
  Rng rng(9);
  for (std::int64_t token = 0; token < tokens; ++token) ids.push_back(static_cast<std::int32_t>(rng.below(37)));

  const auto result = compare_window(model, hidden, ids);
  REQUIRE(result.size() == 3);
  const auto base = log_probabilities(model, hidden[0]);
  for (std::size_t variant = 0; variant < 3; ++variant) {
    const auto other = log_probabilities(model, hidden[variant]);
    double nll = 0;
    std::int64_t same = 0;
    REQUIRE(result[variant].kl.size() == static_cast<std::size_t>(tokens - 1));
    for (std::int64_t token = 0; token + 1 < tokens; ++token) {
      nll -= other[token][ids[token + 1]];
      same += top(other[token]) == top(base[token]);
      double kl = 0;
      for (std::size_t word = 0; word < base[token].size(); ++word) {
        kl += std::exp(base[token][word]) * (base[token][word] - other[token][word]);
      }
      REQUIRE(result[variant].kl[token] == Approx(kl).margin(3e-6).epsilon(1e-4));
    }
    CHECK(result[variant].nll == Approx(nll / static_cast<double>(tokens - 1)).epsilon(1e-6));
    CHECK(result[variant].same_top1 == same);
  }
  CHECK(result[2].same_top1 < result[1].same_top1);
  CHECK(result[1].same_top1 < result[0].same_top1);
}

TEST_CASE("The same hidden states diverge by nothing and agree everywhere") {
  KVQ_BOTH_WAYS();
  FakeModel model;
  const at::Tensor hidden = random_tensor({20, 16}, 1.0f, 5);
  const auto result = compare_window(model, {hidden, hidden.clone()}, std::vector<std::int32_t>(20, 3));
  CHECK(result[1].nll == result[0].nll);
  CHECK(result[1].same_top1 == 19);
  for (float kl : result[1].kl) CHECK(kl == 0.0f);
}

TEST_CASE("A window of two tokens has one prediction") {
  KVQ_BOTH_WAYS();
  FakeModel model;
  const at::Tensor hidden = random_tensor({2, 16}, 1.0f, 5);
  const auto result = compare_window(model, {hidden}, {1, 2});
  CHECK(result[0].kl.size() == 1);
  CHECK(result[0].nll == Approx(-log_probabilities(model, hidden)[0][2]).epsilon(1e-6));
}

TEST_CASE("A loss that is not finite stops the run") {
  KVQ_BOTH_WAYS();
  FakeModel model;
  at::Tensor hidden = random_tensor({20, 16}, 1.0f, 5);
  at::Tensor bad = hidden.clone();
  bad[3][4].fill_(std::numeric_limits<float>::quiet_NaN());
  try {
    compare_window(model, {hidden, bad}, std::vector<std::int32_t>(20, 3));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Numeric);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("cache 1"));
  }
}
