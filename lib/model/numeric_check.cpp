#include <kvq/model/numeric_check.h>

#include <atomic>
#include <bit>
#include <cmath>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/cpu_loops.h>
#include <kvq/model/internal/tensor_ops.h>

namespace kvq {

namespace {

constexpr std::uint32_t kExponent = 0x7f800000u;

/// Integer arithmetic without a branch, which the compiler turns into vector code.
bool row_is_finite(const float* values, std::int64_t count) {
  std::uint32_t found = 0;
  for (std::int64_t at = 0; at < count; ++at) {
    found |= (std::bit_cast<std::uint32_t>(values[at]) & kExponent) == kExponent ? 1u : 0u;
  }
  return found == 0;
}

bool all_finite(const at::Tensor& rows) {
  const float* data = rows.const_data_ptr<float>();
  const std::int64_t width = rows.size(1), stride = rows.stride(0);
  std::atomic<bool> finite{true};
  at::parallel_for(0, rows.size(0), 1 + (1 << 15) / (width + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (!row_is_finite(data + row * stride, width)) finite.store(false, std::memory_order_relaxed);
    }
  });
  return finite;
}

}  // namespace

void check_finite(const at::Tensor& tensor, const std::string& where, const char* what, std::int64_t first_position) {
  at::Tensor values = tensor.detach().to(at::kFloat);
  if (!takes_cpu_loops(values)) {
    if (tensor_ops::all_finite(values)) return;
    values = values.to(at::kCPU);
  }
  at::Tensor rows = values.reshape({values.size(0), -1});
  if (rows.stride(1) != 1) rows = rows.contiguous();
  if (all_finite(rows)) return;
  const float* data = rows.const_data_ptr<float>();
  const std::int64_t channels = values.size(-1);
  for (std::int64_t token = 0; token < rows.size(0); ++token) {
    for (std::int64_t at = 0; at < rows.size(1); ++at) {
      const float value = data[token * rows.stride(0) + at];
      if (std::isfinite(value)) continue;
      const std::string head = values.dim() == 3 ? fmt::format(" head {},", at / channels) : "";
      fail(ErrorKind::Numeric, fmt::format("{}: {} of token {},{} channel {} is {}", where, what,
                                           first_position + token, head, at % channels, value));
    }
  }
}

}  // namespace kvq
