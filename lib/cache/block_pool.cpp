#include <kvq/cache/block_pool.h>

#include <cstring>
#include <new>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/kernels/layout/page.h>

namespace kvq {

namespace {
constexpr std::align_val_t kChunkAlignment{64};
}

void BlockPool::Release::operator()(std::uint8_t* memory) const { ::operator delete(memory, kChunkAlignment); }

BlockPool::BlockPool(std::int64_t block_bytes, std::int64_t blocks_per_chunk)
    : block_bytes_(static_cast<std::uint64_t>(block_bytes)),
      blocks_per_chunk_(static_cast<std::uint64_t>(blocks_per_chunk)) {
  KVQ_ASSERT(block_bytes > 0 && blocks_per_chunk > 0);
}

std::uint32_t BlockPool::take() {
  if (free_.empty()) {
    const std::uint64_t chunk_bytes = block_bytes_ * blocks_per_chunk_ + kReadable;
    if (static_cast<std::uint64_t>(made_) == chunks_.size() * blocks_per_chunk_) {
      KVQ_ASSERT(made_ + static_cast<std::int64_t>(blocks_per_chunk_) < layout::kNoBlock);
      void* memory = ::operator new(chunk_bytes, kChunkAlignment, std::nothrow);
      if (!memory) fail(ErrorKind::Memory, fmt::format("no {} bytes more for the packed cache", chunk_bytes));
      std::memset(memory, 0, chunk_bytes);
      chunks_.emplace_back(static_cast<std::uint8_t*>(memory));
    }
    return static_cast<std::uint32_t>(made_++);
  }
  const std::uint32_t block = free_.back();
  free_.pop_back();
  std::memset(data(block), 0, block_bytes_);
  return block;
}

void BlockPool::give_back(std::uint32_t block) {
  KVQ_ASSERT(block < made_);
  free_.push_back(block);
}

std::int64_t BlockPool::reserved_bytes() const {
  return static_cast<std::int64_t>(chunks_.size() * (block_bytes_ * blocks_per_chunk_ + kReadable));
}

}  // namespace kvq
