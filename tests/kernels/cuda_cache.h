#pragma once
// Packed caches made of random bytes for tests of the CUDA kernels: pages are filled bit by bit, as the layout says,
// and read back by kernels/reference.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/kernels/reference/page_reference.h>

namespace kvq::test {

/// Empty, or why tests that need a GPU cannot run here.
std::string no_gpu_reason();

/// Device memory that is freed at the end; filled with bytes that are NaN as any kind of number.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t bytes);
  DeviceBytes(const void* from, std::size_t bytes);
  ~DeviceBytes();
  DeviceBytes(const DeviceBytes&) = delete;
  void* data() const { return data_; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  void download(void* to, std::size_t bytes) const;

 private:
  void* data_ = nullptr;
};

template <typename T>
DeviceBytes upload(const std::vector<T>& host) {
  return DeviceBytes(host.data(), host.size() * sizeof(T));
}

struct CacheRecipe {
  int heads = 8, kv_heads = 2, head_dim = 128;
  int key_bits = 4, value_bits = 4;
  std::vector<int> lengths = {1, 15, 16, 17, 63, 64, 65, 130};
  double outliers = 0.01;        ///< of either side; 0: none
  double full_token_rate = 0.0;  ///< tokens whose every key is an outlier
  std::int64_t capacity = -1;    ///< of keys' outliers in a page; -1: as calibrated
  double value_outliers = 8.0;   ///< their size
  int sinks = 1;
  bool own_books = false;
  int key_exponent = 0, value_exponent = 0;
  double key_size = 1.0;           ///< of scales and zeros, in units of 2^exponent
  double constant_channels = 0.0;  ///< share of key channels with scale 0
  double query_size = 1.0;
  double theta = 10000.0;
  int splits = 0;
  unsigned seed = 1;
};

class RandomCache {
 public:
  explicit RandomCache(const CacheRecipe& recipe);

  /// Runs the kernel and returns `[batch, heads, head_dim]`.
  std::vector<float> attend() const;
  /// The same in double.
  std::vector<double> expected() const;
  std::size_t overflow_blocks() const { return overflow_.size() / static_cast<std::size_t>(block_bytes_); }

 private:
  reference::Side side(bool key) const;
  std::vector<double> inverse_frequencies() const;

  CacheRecipe recipe_;
  layout::PageLayout page_;
  std::int64_t block_bytes_ = 0, most_pages_ = 0;
  std::vector<std::uint8_t> pages_, overflow_;
  std::vector<std::uint32_t> block_table_;
  std::vector<std::uint16_t> sink_keys_, sink_values_;
  std::vector<float> zero_, scale_, key_decoded_, value_decoded_;
  std::vector<double> query_;
};

/// ||x - y|| / ||y||.
double relative_error(std::span<const float> x, std::span<const double> y);

}  // namespace kvq::test
