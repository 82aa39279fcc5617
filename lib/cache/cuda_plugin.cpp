#include <kvq/cache/cuda_plugin.h>

#include <dlfcn.h>

#include <filesystem>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

/// Beside the library that this function is in.
std::filesystem::path plugin_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&cache_kind_names), &info) == 0 || info.dli_fname == nullptr) {
    fail(ErrorKind::Device, "--cache cuda: cannot tell where libkvq.so is, beside which libkvq_cuda.so should be");
  }
  return std::filesystem::path(info.dli_fname).parent_path() / "libkvq_cuda.so";
}

CudaCacheFactory* open_factory() {
  const std::filesystem::path path = plugin_path();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    fail(ErrorKind::Device, fmt::format("--cache cuda: there is no {}: this build has no CUDA kernels (build with nvcc "
                                        "installed, or use --cache packed)",
                                        path.string()));
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* factory = library ? dlsym(library, kCudaCacheFactory) : nullptr;
  if (factory == nullptr) {
    const char* reason = dlerror();
    fail(ErrorKind::Device,
         fmt::format("--cache cuda: {} cannot be opened: {}", path.string(), reason ? reason : "unknown reason"));
  }
  return reinterpret_cast<CudaCacheFactory*>(factory);
}

}  // namespace

std::unique_ptr<KvCache> make_cuda_cache(const std::shared_ptr<const Quantizer>& quantizer) {
  static CudaCacheFactory* const factory = open_factory();
  return std::unique_ptr<KvCache>(factory(quantizer));
}

void require_cuda_cache() { make_cuda_cache(nullptr); }

}  // namespace kvq
