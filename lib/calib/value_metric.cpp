#include <kvq/calib/value_metric.h>

#include <algorithm>
#include <cstddef>

#include <ATen/ops/mm.h>
#include <c10/core/GradMode.h>

#include <kvq/core/error.h>

namespace kvq {

std::vector<double> value_metric(const at::Tensor& output, int kv_heads, int head_dim) {
  const c10::AutoGradMode no_grad(false);
  const std::int64_t dim = head_dim, heads = output.size(1) / dim, group = heads / kv_heads;
  KVQ_ASSERT(output.size(1) == heads * dim && heads == group * kv_heads);
  const auto size = static_cast<std::size_t>(dim * dim);
  std::vector<double> metric(static_cast<std::size_t>(kv_heads) * size);
  for (std::int64_t head = 0; head < heads; ++head) {
    const at::Tensor columns = output.narrow(1, head * dim, dim).to(at::kDouble).contiguous();
    const at::Tensor gram = at::mm(columns.t(), columns);
    const double* from = gram.const_data_ptr<double>();
    double* to = metric.data() + static_cast<std::size_t>(head / group) * size;
    for (std::int64_t row = 0; row < dim; ++row) {
      for (std::int64_t column = row; column < dim; ++column) {
        to[row * dim + column] += from[row * dim + column];
        to[column * dim + row] = to[row * dim + column];
      }
    }
  }
  return metric;
}

}  // namespace kvq
