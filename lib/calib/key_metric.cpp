#include <kvq/calib/key_metric.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>
#include <c10/core/GradMode.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr std::int64_t kMetricTokens = 64;
constexpr float kNegligible = 1.0f / 256;
constexpr std::int64_t kPartTokens = 8;  // fixes the order of summation

/// Rᵀ x of one vector of doubles whose elements lie `stride` apart.
void turn_back(double* x, std::int64_t stride, std::span<const double> cosine, std::span<const double> sine) {
  const auto half = static_cast<std::int64_t>(cosine.size());
  for (std::int64_t pair = 0; pair < half; ++pair) {
    double& first = x[pair * stride];
    double& second = x[(pair + half) * stride];
    const double a = first, b = second;
    const auto at = static_cast<std::size_t>(pair);
    first = a * cosine[at] + b * sine[at];
    second = b * cosine[at] - a * sine[at];
  }
}

/// One kv head.
struct Head {
  at::Tensor query;        ///< `[tokens * group, head_dim]`, after RoPE
  const float* queries;    ///< its numbers
  at::Tensor key;          ///< `[tokens, head_dim]`, after RoPE
  const double* log_sums;  ///< `[tokens * group]`
  std::int64_t group, dim, window;
};

/// What one token adds, before it is turned back: Σ (w(1 - w))² q qᵀ, q after RoPE, `[dim, dim]`.
at::Tensor token_moment(const Head& head, std::int64_t token) {
  const std::int64_t first = token * head.group, later = head.query.size(0) - first,
                     rows = head.window > 0 ? std::min(later, head.window * head.group) : later;
  const at::Tensor scores = at::mv(head.query.narrow(0, first, rows), head.key.select(0, token));
  const float* score = scores.const_data_ptr<float>();
  const double scale = 1.0 / std::sqrt(static_cast<double>(head.dim));
  std::vector<float> importance(static_cast<std::size_t>(rows));
  float largest = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto w = static_cast<float>(std::exp(scale * score[row] - head.log_sums[first + row]));
    importance[static_cast<std::size_t>(row)] = std::max(w * (1 - w), 0.0f);
    largest = std::max(largest, importance[static_cast<std::size_t>(row)]);
  }
  std::vector<float> kept;
  for (std::int64_t row = 0; row < rows; ++row) {
    const float factor = importance[static_cast<std::size_t>(row)];
    if (!(factor > 0) || factor < kNegligible * largest) continue;
    const float* q = head.queries + (first + row) * head.dim;
    for (std::int64_t channel = 0; channel < head.dim; ++channel) kept.push_back(factor * q[channel]);
  }
  const at::Tensor chosen = at::from_blob(kept.data(), {static_cast<std::int64_t>(kept.size()) / head.dim, head.dim},
                                          at::TensorOptions().dtype(at::kFloat));
  return at::mm(chosen.t(), chosen);
}

}  // namespace

std::vector<std::int64_t> metric_tokens(std::int64_t sequence, std::int64_t seqlen) {
  KVQ_ASSERT(seqlen >= 2);
  const std::int64_t count = std::min(kMetricTokens, seqlen - 1);
  const std::int64_t offset = (sequence + 1) * 40503 % 65536;
  std::vector<std::int64_t> tokens;
  for (std::int64_t index = 0; index < count; ++index)
    tokens.push_back(1 + (index * 65536 + offset) * (seqlen - 1) / (count * 65536));
  return tokens;
}

std::vector<double> key_metric(const at::Tensor& query, const at::Tensor& key, const RopeParams& params,
                               RopeTable& rope, std::int64_t window, std::span<const double> log_sums,
                               std::span<const std::int64_t> tokens) {
  const c10::AutoGradMode no_grad(false);
  const std::int64_t length = query.size(0), dim = query.size(2), kv_heads = key.size(1),
                     group = query.size(1) / kv_heads;
  KVQ_ASSERT(static_cast<std::int64_t>(log_sums.size()) == length * group * kv_heads);
  const at::Tensor rotated_query = rope.apply(query, 0), rotated_key = rope.apply(key, 0);
  const std::vector<double> frequencies = params.inverse_frequencies();
  const auto chosen = static_cast<std::int64_t>(tokens.size()), parts = (chosen + kPartTokens - 1) / kPartTokens;
  const auto size = static_cast<std::size_t>(dim * dim);

  std::vector<double> sums(static_cast<std::size_t>(kv_heads * parts) * size);
  at::parallel_for(0, kv_heads * parts, 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::AutoGradMode thread_no_grad(false);
    Head head{{}, nullptr, {}, nullptr, group, dim, window};
    std::int64_t prepared = -1;
    std::vector<double> block(size), cosine(frequencies.size()), sine(frequencies.size());
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t kv_head = task / parts, part = task % parts;
      if (kv_head != std::exchange(prepared, kv_head)) {
        head.query = rotated_query.narrow(1, kv_head * group, group).reshape({length * group, dim}).contiguous();
        head.queries = head.query.const_data_ptr<float>();
        head.key = rotated_key.select(1, kv_head).contiguous();
        head.log_sums = log_sums.data() + kv_head * length * group;
      }
      double* sum = sums.data() + static_cast<std::size_t>(task) * size;
      for (std::int64_t index = part * kPartTokens; index < std::min((part + 1) * kPartTokens, chosen); ++index) {
        const std::int64_t token = tokens[static_cast<std::size_t>(index)];
        const at::Tensor moment = token_moment(head, token);
        std::copy_n(moment.const_data_ptr<float>(), size, block.begin());
        for (std::size_t pair = 0; pair < frequencies.size(); ++pair) {
          const double angle = static_cast<double>(token) * frequencies[pair];
          cosine[pair] = std::cos(angle);
          sine[pair] = std::sin(angle);
        }
        for (std::int64_t row = 0; row < dim; ++row) turn_back(block.data() + row * dim, 1, cosine, sine);
        for (std::int64_t column = 0; column < dim; ++column) turn_back(block.data() + column, dim, cosine, sine);
        for (std::size_t element = 0; element < size; ++element) sum[element] += block[element];
      }
    }
  });
  std::vector<double> total(static_cast<std::size_t>(kv_heads) * size);
  for (std::int64_t task = 0; task < kv_heads * parts; ++task) {
    double* to = total.data() + static_cast<std::size_t>(task / parts) * size;
    const double* from = sums.data() + static_cast<std::size_t>(task) * size;
    for (std::size_t element = 0; element < size; ++element) to[element] += from[element];
  }
  return total;
}

}  // namespace kvq
