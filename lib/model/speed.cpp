#include <kvq/model/speed.h>

#include <algorithm>
#include <chrono>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

namespace kvq {

double measured_flops(Dtype dtype) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kSize = 768;
  const auto options = at::TensorOptions().dtype(dtype == Dtype::Bf16 ? at::kBFloat16 : at::kFloat);
  const at::Tensor a = at::ones({kSize, kSize}, options), b = at::ones({kSize, kSize}, options);
  at::mm(a, b);  // wakes the threads up
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point start = Clock::now();
    at::mm(a, b);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 2.0 * kSize * kSize * kSize / best;
}

}  // namespace kvq
