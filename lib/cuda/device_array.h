#pragma once
// Memory of the current CUDA device, and what CUDA's calls say when they fail.

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>

#include <cuda_runtime_api.h>

namespace kvq {

/// Throws Memory for cudaErrorMemoryAllocation, else Device, with CUDA's own words.
void check_cuda(cudaError_t status, const std::string& what);

/// `T`s on the device. Grows, never shrinks.
template <typename T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  DeviceArray() = default;
  explicit DeviceArray(std::span<const T> from) { upload(from); }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), room_(other.room_) {
    other.data_ = nullptr, other.room_ = 0;
  }

  T* data() const { return data_; }
  std::int64_t room() const { return room_; }

  /// Room for `count` at least; what was there stays.
  void reserve(std::int64_t count) {
    if (count <= room_) return;
    T* larger = nullptr;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(T);
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&larger), bytes), "allocating GPU memory");
    if (room_ > 0) {
      const cudaError_t copied =
          cudaMemcpy(larger, data_, static_cast<std::size_t>(room_) * sizeof(T), cudaMemcpyDeviceToDevice);
      if (copied != cudaSuccess) {
        cudaFree(larger);
        check_cuda(copied, "moving GPU memory");
      }
      cudaFree(data_);
    }
    data_ = larger, room_ = count;
  }

  /// Writes at `first`; there must be room, unless it is 0.
  void upload(std::span<const T> from, std::int64_t first = 0) {
    if (first == 0) reserve(static_cast<std::int64_t>(from.size()));
    check_cuda(cudaMemcpy(data_ + first, from.data(), from.size_bytes(), cudaMemcpyHostToDevice), "copying to the GPU");
  }
  void download(std::span<T> to, std::int64_t first = 0) const {
    check_cuda(cudaMemcpy(to.data(), data_ + first, to.size_bytes(), cudaMemcpyDeviceToHost), "copying from the GPU");
  }
  void fill_bytes(int byte) {
    check_cuda(cudaMemset(data_, byte, static_cast<std::size_t>(room_) * sizeof(T)), "clearing GPU memory");
  }

 private:
  T* data_ = nullptr;
  std::int64_t room_ = 0;
};

}  // namespace kvq
