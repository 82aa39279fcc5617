#include <kvq/model/threads.h>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

void set_compute_threads(int threads) {
  if (threads < 1) fail(ErrorKind::Usage, fmt::format("{} threads: at least 1 is needed", threads));
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
