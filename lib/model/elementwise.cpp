#include <kvq/model/elementwise.h>

#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

namespace kvq {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x, {x.size(-1)}, weight, eps);
}

at::Tensor silu_times(const at::Tensor& gate_up) {
  const std::int64_t width = gate_up.size(-1) / 2;
  return at::silu(gate_up.narrow(-1, 0, width)).mul_(gate_up.narrow(-1, width, width));
}

}  // namespace kvq
