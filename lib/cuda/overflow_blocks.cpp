#include <kvq/cuda/overflow_blocks.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace kvq {

OverflowBlocks::OverflowBlocks(std::int64_t block_bytes) : block_bytes_(block_bytes) {
  blocks_.reserve(block_bytes);  // never without an address
  free_list_.reserve(1);
  set_free(0);
}

void OverflowBlocks::set_free(std::int64_t count) {
  free_ = count;
  free_count_.upload(std::array{static_cast<std::int32_t>(count)});
}

void OverflowBlocks::reserve(std::int64_t count) {
  if (free_ >= count) return;
  const std::int64_t more = std::max(count - free_, total_ / 2);
  blocks_.reserve((total_ + more) * block_bytes_);
  free_list_.reserve(total_ + more);
  std::vector<std::uint32_t> numbers(static_cast<std::size_t>(more));
  std::iota(numbers.begin(), numbers.end(), static_cast<std::uint32_t>(total_));
  free_list_.upload(numbers, free_);
  total_ += more;
  set_free(free_ + more);
}

void OverflowBlocks::refresh() {
  std::array<std::int32_t, 1> count{};
  free_count_.download(count);
  free_ = count[0];
}

void OverflowBlocks::give_all_back() {
  std::vector<std::uint32_t> numbers(static_cast<std::size_t>(total_));
  std::iota(numbers.begin(), numbers.end(), 0u);
  if (total_ > 0) free_list_.upload(numbers);
  set_free(total_);
}

}  // namespace kvq
