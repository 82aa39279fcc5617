#include <kvq/model/device.h>

#include <algorithm>
#include <mutex>

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/core/error.h>
#include <kvq/model/internal/cuda_library.h>
#include <kvq/model/memory.h>

namespace kvq {

namespace {

/// The first lines of libtorch's messages say what is wrong; a stack of calls follows.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Forwards and backwards: libtorch takes gradients in a thread of its own, whose first product of matrices would warn
/// if nothing had been done on the GPU in it before.
bool computes(c10::Device device) {
  const c10::AutoGradMode with_grad(true);
  const at::Tensor three = at::ones({1}, at::TensorOptions().device(device)).mul(3).set_requires_grad(true);
  three.mul(three).backward();
  return three.grad().item<float>() == 6.0f;
}

void open_cuda() {
  open_cuda_library();
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  // bf16 products are summed in fp32 to the end, as on the CPU.
  context.setAllowBF16ReductionCuBLAS(false);
  try {
    KVQ_ASSERT(computes(at::kCUDA));
  } catch (const c10::Error& error) {
    fail(ErrorKind::Device, fmt::format("--device cuda: the GPU does not compute: {}", first_line(error.what())));
  }
}

}  // namespace

const std::vector<std::string>& device_names() {
  static const std::vector<std::string> names = {"cpu", "cuda"};
  return names;
}

Device parse_device(const std::string& word) {
  const std::vector<std::string>& names = device_names();
  const auto found = std::find(names.begin(), names.end(), word);
  if (found == names.end())
    fail(ErrorKind::Usage, fmt::format("--device '{}' is unknown; known: {}", word, fmt::join(names, ", ")));
  return static_cast<Device>(found - names.begin());
}

const char* device_name(Device device) { return device_names()[static_cast<std::size_t>(device)].c_str(); }

void open_device(Device device) {
  if (device == Device::Cpu) return;
  static std::once_flag opened;
  std::call_once(opened, open_cuda);  // tried again after a failure
}

c10::Device torch_device(Device device) {
  return device == Device::Cpu ? c10::Device(c10::DeviceType::CPU) : c10::Device(c10::DeviceType::CUDA, 0);
}

std::int64_t available_memory_bytes(Device device) {
  if (device == Device::Cpu) return available_memory_bytes();
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(c10::DeviceType::CUDA);
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const c10::CachingDeviceAllocator::DeviceStats stats = allocator->getDeviceStats(0);
  const auto free = static_cast<std::int64_t>(allocator->getMemoryInfo(0).first);
  return free + stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
}

at::Tensor host_floats(const at::Tensor& x) {
  return x.detach().to(at::TensorOptions().device(at::kCPU).dtype(at::kFloat)).contiguous();
}

}  // namespace kvq
