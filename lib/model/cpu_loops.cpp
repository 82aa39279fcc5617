#include <kvq/model/cpu_loops.h>

#include <atomic>

namespace kvq {

namespace {

std::atomic<int> without_loops{0};

}  // namespace

bool takes_cpu_loops(const at::Tensor& x) { return x.is_cpu() && without_loops.load(std::memory_order_relaxed) == 0; }

WithoutCpuLoops::WithoutCpuLoops() { ++without_loops; }
WithoutCpuLoops::~WithoutCpuLoops() { --without_loops; }

}  // namespace kvq
