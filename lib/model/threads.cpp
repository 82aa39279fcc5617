#include <kvq/model/threads.h>

#include <mutex>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

void settle_vector_functions() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const at::ScalarType type : {at::kFloat, at::kDouble})
      at::full({1}, 0.5, at::TensorOptions().dtype(type)).exp_().log_();
  });
}

void set_compute_threads(int threads) {
  if (threads < 1) fail(ErrorKind::Usage, fmt::format("{} threads: at least 1 is needed", threads));
  // libtorch has two pools: one waits for ever where a thread is refused, the other (OpenMP) ends the process.
  if (threads > 1) require_threads(2 * threads);
  at::set_num_threads(threads);
  // May only be called once and before the pool starts; one inter-op thread is all that is ever used here, and a
  // process that has chosen otherwise keeps its choice.
  if (at::get_num_interop_threads() != 1) {
    try {
      at::set_num_interop_threads(1);
    } catch (const std::exception&) {
    }
  }
}

}  // namespace kvq
