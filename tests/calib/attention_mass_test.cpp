#include <cmath>

#include <ATen/Context.h>
#include <ATen/ops/randn.h>

#include "support/both_ways.h"
#include "support/catch.h"

#include <kvq/calib/attention_mass.h>
#include <kvq/model/threads.h>

using namespace kvq;

namespace {

/// The definition, in double, one query at a time.
std::vector<double> brute_force(const at::Tensor& query, const at::Tensor& key, const RopeParams& params,
                                std::int64_t window = 1 << 20) {
  RopeTable rope(params);
  const at::Tensor q = rope.apply(query, 0).to(at::kDouble).contiguous(),
                   k = rope.apply(key, 0).to(at::kDouble).contiguous();
  const std::int64_t tokens = q.size(0), heads = q.size(1), dim = q.size(2), kv_heads = k.size(1),
                     group = heads / kv_heads;
  const double *qs = q.const_data_ptr<double>(), *ks = k.const_data_ptr<double>();
  std::vector<double> mass(tokens, 0.0);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::vector<double> weight(t + 1);
      double total = 0;
      const std::int64_t first = std::max<std::int64_t>(0, t + 1 - window);
      for (std::int64_t s = first; s <= t; ++s) {
        double score = 0;
        for (std::int64_t c = 0; c < dim; ++c)
          score += qs[(t * heads + head) * dim + c] * ks[(s * kv_heads + head / group) * dim + c];
        total += weight[s] = std::exp(score / std::sqrt(static_cast<double>(dim)));
      }
      for (std::int64_t s = first; s <= t; ++s) mass[s] += weight[s] / total;
    }
  }
  return mass;
}

}  // namespace

TEST_CASE("Attention mass equals its definition across block borders and head groupings") {
  KVQ_BOTH_WAYS();
  at::manual_seed(3);
  RopeParams rope;
  rope.rotary_dim = 16;
  for (const auto& [heads, kv_heads] : {std::pair{4, 4}, {6, 2}, {3, 1}}) {
    for (const std::int64_t tokens : {1, 2, 63, 64, 65, 200}) {
      const at::Tensor query = at::randn({tokens, heads, 16}), key = at::randn({tokens, kv_heads, 16}).mul(2);
      RopeTable table(rope);
      const std::vector<float> got = attention_mass(query, key, table, false);
      const std::vector<double> want = brute_force(query, key, rope);
      REQUIRE(got.size() == want.size());
      for (std::size_t token = 0; token < want.size(); ++token)
        CHECK(got[token] == Approx(want[token]).epsilon(2e-5).margin(1e-6));
      const std::vector<float> half = attention_mass(query, key, table, true);
      for (std::size_t token = 0; token < want.size(); ++token)
        CHECK(half[token] == Approx(want[token]).epsilon(0.04).margin(0.01));
      if (tokens > 1) CHECK(half != got);
    }
  }
}

TEST_CASE("Attention mass within a window equals its definition") {
  KVQ_BOTH_WAYS();
  at::manual_seed(5);
  const RopeParams rope{.theta = 100.0, .rotary_dim = 16};
  const at::Tensor query = at::randn({200, 6, 16}), key = at::randn({200, 2, 16}).mul(2);
  for (const std::int64_t window : {1, 2, 63, 64, 65, 199, 500}) {
    INFO("window " << window);
    RopeTable table(rope);
    const std::vector<float> got = attention_mass(query, key, table, false, window);
    const std::vector<double> want = brute_force(query, key, rope, window);
    for (std::size_t token = 0; token < want.size(); ++token)
      CHECK(got[token] == Approx(want[token]).epsilon(2e-5).margin(1e-6));
  }
}

TEST_CASE("Attention mass is the same with one thread and with three") {
  KVQ_BOTH_WAYS();
  at::manual_seed(4);
  RopeParams rope;
  rope.rotary_dim = 32;
  const at::Tensor query = at::randn({300, 8, 32}), key = at::randn({300, 2, 32});
  RopeTable table(rope);
  set_compute_threads(1);
  const std::vector<float> one = attention_mass(query, key, table, false);
  set_compute_threads(3);
  CHECK(attention_mass(query, key, table, false) == one);
  set_compute_threads(1);
}
