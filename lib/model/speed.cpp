#include <kvq/model/speed.h>

#include <algorithm>
#include <chrono>

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

namespace kvq {

double measured_flops(Dtype dtype, Device device) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t size = device == Device::Cpu ? 768 : 4096;
  const auto options =
      at::TensorOptions().dtype(dtype == Dtype::Bf16 ? at::kBFloat16 : at::kFloat).device(torch_device(device));
  const at::Tensor a = at::ones({size, size}, options), b = at::ones({size, size}, options);
  const auto multiply = [&] {
    const at::Tensor product = at::mm(a, b);
    if (device != Device::Cpu) product[0][0].item<float>();  // waits for it
  };
  multiply();  // wakes the threads up
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const Clock::time_point start = Clock::now();
    multiply();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(size * size * size) / best;
}

}  // namespace kvq
