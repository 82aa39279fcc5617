#pragma once
// The overflow blocks of one sequence in GPU memory, all layers. The kernels take blocks from the end of a list of free
// ones; here is room made before they run, and counted what they took.

#include <cstdint>

#include <kvq/cuda/device_array.h>

namespace kvq {

class OverflowBlocks {
 public:
  explicit OverflowBlocks(std::int64_t block_bytes);

  std::uint8_t* data() const { return blocks_.data(); }
  const std::uint32_t* free_list() const { return free_list_.data(); }
  std::int32_t* free_count() const { return free_count_.data(); }
  std::int64_t block_bytes() const { return block_bytes_; }

  /// At least `count` free ones; blocks may move.
  void reserve(std::int64_t count);
  /// Asks the device how many are left.
  void refresh();
  std::int64_t taken() const { return total_ - free_; }
  void give_all_back();

 private:
  void set_free(std::int64_t count);

  std::int64_t block_bytes_, total_ = 0, free_ = 0;
  DeviceArray<std::uint8_t> blocks_;
  DeviceArray<std::uint32_t> free_list_;
  DeviceArray<std::int32_t> free_count_;
};

}  // namespace kvq
