#include <kvq/model/internal/cuda_library.h>

#include <dlfcn.h>

#include <filesystem>
#include <string>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& reason) {
  fail(ErrorKind::Device, fmt::format("--device cuda: {}; --device cpu needs none of it", reason));
}

std::string loader_problem() {
  const char* reason = dlerror();
  return reason ? reason : "unknown reason";
}

// The few functions of the driver that are asked before libtorch's gigabyte is opened. Their header comes with a CUDA
// toolkit, which is not needed to build this.
using DriverInit = int(unsigned flags);
using DriverCount = int(int* count);
using DriverName = int(int error, const char** text);

template <typename Function>
Function* driver_function(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr) refuse(fmt::format("the NVIDIA driver's libcuda.so.1 has no {}", name));
  return reinterpret_cast<Function*>(found);
}

/// "13.0" of 13000.
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

void check_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) {
    refuse(
        fmt::format("no NVIDIA driver is to be found ({}): it comes with the GPU's machine, into a container by its "
                    "runtime's GPU option",
                    loader_problem()));
  }
  const auto text_of = [&](int status) {
    const char* text = nullptr;
    driver_function<DriverName>(driver, "cuGetErrorString")(status, &text);
    return std::string(text ? text : "unknown error");
  };
  int count = 0, version = 0;
  if (const int status = driver_function<DriverInit>(driver, "cuInit")(0); status != 0)
    refuse(fmt::format("the NVIDIA driver finds no usable GPU: {} (error {})", text_of(status), status));
  if (const int status = driver_function<DriverCount>(driver, "cuDeviceGetCount")(&count); status != 0 || count == 0)
    refuse("the NVIDIA driver shows no GPU to this process (CUDA_VISIBLE_DEVICES?)");
  // libtorch_cpu.so of a CUDA build has brought the CUDA runtime along.
  void* runtime = dlsym(RTLD_DEFAULT, "cudaRuntimeGetVersion");
  int needed = 0;
  if (runtime == nullptr || reinterpret_cast<DriverCount*>(runtime)(&needed) != 0) return;
  driver_function<DriverCount>(driver, "cuDriverGetVersion")(&version);
  if (version / 1000 < needed / 1000) {
    refuse(fmt::format("the NVIDIA driver knows CUDA up to {}, libtorch is built for {}: a later driver is needed",
                       version_text(version), version_text(needed)));
  }
}

fs::path cuda_part() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&at::get_num_threads), &info) == 0 || info.dli_fname == nullptr)
    refuse("cannot tell where libtorch_cpu.so is, beside which libtorch_cuda.so should be");
  return fs::path(info.dli_fname).parent_path() / "libtorch_cuda.so";
}

}  // namespace

void open_cuda_library() {
  const fs::path path = cuda_part();
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    refuse(
        fmt::format("there is no {}: this libtorch computes on the CPU only; a CUDA build of the same version (the "
                    "PyPI wheel is one) belongs there",
                    path.string()));
  check_driver();
  // Global, as if it had been linked: parts of it that libtorch opens later look for the others there.
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    refuse(fmt::format(
        "{} cannot be opened: {}. The libraries that it needs come with the CUDA toolkit and, beyond it, in "
        "the wheels nvidia-cudnn-cu13, nvidia-cusparselt-cu13, nvidia-cufile, nvidia-nccl-cu13 and "
        "nvidia-nvshmem-cu13; their folders belong on LD_LIBRARY_PATH",
        path.string(), loader_problem()));
  }
}

}  // namespace kvq
