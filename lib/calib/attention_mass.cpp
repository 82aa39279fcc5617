#include <kvq/calib/attention_mass.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>

#include <c10/core/GradMode.h>

#include <kvq/model/blocked_attention.h>
#include <kvq/model/cpu_loops.h>
#include <kvq/model/device.h>
#include <kvq/model/linear.h>
#include <kvq/model/vector_math.h>

namespace kvq {

namespace {

/// Scores of a block of queries over 2048 keys stay in the second-level cache.
constexpr std::int64_t kBlockTokens = 64;
constexpr std::int64_t kBlockRows = 128;  // query heads of one kv head share the product
constexpr std::int64_t kStripes = 16;     // parts of a kv head's work

/// Queries [first, first + count) of one kv head, `query [tokens * group, head_dim]` row by row; adds to `mass`.
/// `log_sums` `[tokens * group]` or null.
void add_block(const at::Tensor& query, const at::Tensor& keys_transposed, std::int64_t group, std::int64_t first,
               std::int64_t count, std::int64_t window, std::vector<float>& scores, double* mass, double* log_sums) {
  const VectorMath& math = vector_math();
  const auto begin_of = [&](std::int64_t token) {
    return window > 0 ? std::max<std::int64_t>(0, token + 1 - window) : 0;
  };
  const std::int64_t begin = begin_of(first), keys = first + count - begin, rows = count * group;
  const at::TensorOptions options = at::TensorOptions().dtype(at::kFloat);
  at::Tensor product = at::from_blob(scores.data(), {rows, keys}, options);
  const at::Tensor rows_of_query = query.narrow(0, first * group, rows), seen = keys_transposed.narrow(1, begin, keys);
  if (query.scalar_type() == at::kFloat) {
    at::mm_out(product, rows_of_query, seen);
  } else {
    product.copy_(at::mm(rows_of_query, seen));
  }
  at::Tensor share = at::empty({1, rows}, options), sum = at::empty({1, keys}, options);
  float* shares = share.mutable_data_ptr<float>();
  for (std::int64_t row = 0; row < rows; ++row) {
    float* weights = scores.data() + row * keys;
    const std::int64_t token = first + row / group, unseen = begin_of(token) - begin, end = token + 1 - begin;
    float* visible = weights + unseen;
    const float largest = math.max(visible, end - unseen);
    const double total = math.exp_in_place(visible, end - unseen, largest);
    shares[row] = static_cast<float>(1.0 / total);
    if (log_sums != nullptr) log_sums[first * group + row] = largest + std::log(total);
    std::fill(weights, visible, 0.0f);
    std::fill(weights + end, weights + keys, 0.0f);
  }
  at::mm_out(sum, share, product);  // normalises the rows and adds them up
  const float* sums = sum.const_data_ptr<float>();
  for (std::int64_t token = 0; token < keys; ++token) mass[begin + token] += static_cast<double>(sums[token]);
}

/// By libtorch's operations, on the device of the query.
std::vector<float> mass_on_device(const at::Tensor& query, const at::Tensor& key, RopeTable& rope, bool bf16,
                                  std::int64_t window, std::vector<double>* log_sums) {
  const BlockedScores all(attention_operand(rope.apply(query, 0), bf16), attention_operand(rope.apply(key, 0), bf16), 0,
                          window);
  const std::int64_t tokens = query.size(0);
  const at::TensorOptions sums = query.options().dtype(at::kDouble);
  const at::Tensor mass = at::zeros({tokens}, sums);
  at::Tensor logs;
  if (log_sums != nullptr) logs = at::empty({key.size(1), tokens * all.group()}, sums);
  for (const BlockedScores::Block& block : all.blocks()) {
    at::Tensor scores = all.scores(block);
    const at::Tensor largest = scores.amax({-1}, true);
    scores.sub_(largest).exp_();
    const at::Tensor total = scores.sum({-1}, true, at::kDouble);
    scores.mul_(total.reciprocal().to(at::kFloat));
    mass.narrow(0, block.begin, block.keys()).add_(scores.sum(at::IntArrayRef({0, 1}), false, at::kDouble));
    if (log_sums != nullptr) {
      logs.narrow(1, block.first * all.group(), block.count * all.group()).copy_(total.log().add_(largest).squeeze(-1));
    }
  }
  if (log_sums != nullptr) {
    const at::Tensor host = logs.to(at::kCPU);
    log_sums->assign(host.const_data_ptr<double>(), host.const_data_ptr<double>() + host.numel());
  }
  const at::Tensor host = host_floats(mass);
  return {host.const_data_ptr<float>(), host.const_data_ptr<float>() + tokens};
}

}  // namespace

std::vector<float> attention_mass(const at::Tensor& query, const at::Tensor& key, RopeTable& rope, bool bf16,
                                  std::int64_t window, std::vector<double>* log_sums) {
  const c10::AutoGradMode no_grad(false);
  if (!takes_cpu_loops(query)) return mass_on_device(query, key, rope, bf16, window, log_sums);
  const std::int64_t tokens = query.size(0), head_dim = query.size(2), kv_heads = key.size(1),
                     group = query.size(1) / kv_heads;
  const at::Tensor rotated_query = rope.apply(query, 0), rotated_key = rope.apply(key, 0);
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const std::int64_t step = std::clamp<std::int64_t>(kBlockRows / group, 1, kBlockTokens);
  const std::int64_t blocks = (tokens + step - 1) / step, stripes = std::min(kStripes, blocks);

  if (log_sums != nullptr) log_sums->assign(static_cast<std::size_t>(kv_heads * tokens * group), 0.0);
  // One sum per stripe, added up in order at the end: no order of threads matters.
  std::vector<double> partial(static_cast<std::size_t>(kv_heads * stripes * tokens), 0.0);
  at::parallel_for(0, kv_heads * stripes, 1, [&](std::int64_t begin, std::int64_t end) {
    const c10::AutoGradMode thread_no_grad(false);
    std::vector<float> scores(static_cast<std::size_t>(step * group * tokens));
    at::Tensor head_query, head_keys;
    std::int64_t prepared = -1;
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t kv_head = task / stripes;
      if (kv_head != std::exchange(prepared, kv_head)) {
        const at::Tensor rows = rotated_query.narrow(1, kv_head * group, group).reshape({tokens * group, head_dim});
        head_query = attention_operand(rows.mul(scale), bf16);
        head_keys = attention_operand(rotated_key.select(1, kv_head).contiguous(), bf16).t();
      }
      // Late blocks cost more. A stripe takes its turn forwards, then backwards, so that all stripes are equal work.
      for (std::int64_t round = 0; round * stripes < blocks; ++round) {
        const std::int64_t turn = round % 2 == 0 ? task % stripes : stripes - 1 - task % stripes;
        const std::int64_t first = (round * stripes + turn) * step;
        if (first >= tokens) continue;
        add_block(head_query, head_keys, group, first, std::min(step, tokens - first), window, scores,
                  partial.data() + task * tokens,
                  log_sums != nullptr ? log_sums->data() + kv_head * tokens * group : nullptr);
      }
    }
  });
  std::vector<double> mass(static_cast<std::size_t>(tokens), 0.0);
  for (std::size_t index = 0; index < partial.size(); ++index) mass[index % mass.size()] += partial[index];
  return {mass.begin(), mass.end()};
}

}  // namespace kvq
