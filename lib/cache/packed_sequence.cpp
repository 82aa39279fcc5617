#include <kvq/cache/packed_sequence.h>

#include <algorithm>

#include <kvq/cache/cache_checks.h>
#include <kvq/cache/page_bytes.h>
#include <kvq/cache/page_writer.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/parallel.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

using layout::kPageTokens;

/// Pages that are encoded before they are written: bounds the memory for codes that wait.
constexpr std::int64_t kPagesAtOnce = 64;

/// Part of the appended tokens that goes into one page.
struct Part {
  std::int64_t first, count;  ///< of the tokens of the call
  std::int64_t page;
  int slot;
  EncodedTokens encoded[2];
};

}  // namespace

PackedSequence::PackedSequence(std::shared_ptr<PackedPool> pool) : pool_(std::move(pool)) {
  layers_.resize(static_cast<std::size_t>(pool_->quantizer().shape.layers));
}

PackedSequence::~PackedSequence() {
  if (pool_) crop(0);
}

PackedSequence& PackedSequence::operator=(PackedSequence&& other) noexcept {
  std::swap(pool_, other.pool_);
  std::swap(layers_, other.layers_);
  return *this;
}

void PackedSequence::append(int layer, std::span<const float> key, std::span<const float> value, int threads) {
  const KvShape& shape = pool_->quantizer().shape;
  const auto width = static_cast<std::size_t>(shape.width());
  KVQ_ASSERT(key.size() == value.size() && key.size() % width == 0);
  const std::int64_t before = length(layer);
  const auto tokens = static_cast<std::int64_t>(key.size() / width);
  try {
    const auto sinks = std::clamp<std::int64_t>(pool_->quantizer().recipe.sinks - before, 0, tokens);
    append_sinks(layer, Side::Key, key.first(static_cast<std::size_t>(sinks) * width));
    append_sinks(layer, Side::Value, value.first(static_cast<std::size_t>(sinks) * width));
    for (std::int64_t first = 0; first < tokens;) {  // all slots, so that sinks get theirs
      const std::int64_t room = kPagesAtOnce * kPageTokens - (before + first) % kPageTokens;
      const auto count = static_cast<std::size_t>(std::min(tokens - first, room));
      const std::size_t from = static_cast<std::size_t>(first) * width;
      append_pages(layer, key.subspan(from, count * width), value.subspan(from, count * width), threads);
      first += static_cast<std::int64_t>(count);
    }
  } catch (...) {
    crop_layer(layer, before);
    throw;
  }
}

void PackedSequence::append_sinks(int layer, Side side, std::span<const float> tokens) {
  if (tokens.empty()) return;
  const SideQuantizer& quantizer = pool_->quantizer().layers[static_cast<std::size_t>(layer)].side(side);
  std::vector<float> rounded(tokens.begin(), tokens.end());
  try {
    pool_->layer(layer).encoder(side).round_exact(rounded);
  } catch (const ExactOverflow& overflow) {
    fail_overflow(layer, side, length(layer), quantizer.head_dim, overflow);
  }
  std::vector<std::uint16_t>& exact = layers_[static_cast<std::size_t>(layer)].exact[static_cast<int>(side)];
  std::vector<std::uint16_t> longer;
  longer.reserve(exact.size() + rounded.size());  // exactly what is counted
  longer = exact;
  const float to_stored = power_of_two(-quantizer.exponent);
  for (const float x : rounded) longer.push_back(float_to_half(x * to_stored));
  exact = std::move(longer);
}

void PackedSequence::append_pages(int layer, std::span<const float> key, std::span<const float> value, int threads) {
  PackedPool::Layer& shared = pool_->layer(layer);
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  const auto width = static_cast<std::size_t>(shared.page.key.width());
  const auto tokens = static_cast<std::int64_t>(key.size() / width);
  const int sinks = pool_->quantizer().recipe.sinks;
  std::vector<Part> parts;
  for (std::int64_t first = 0; first < tokens;) {
    const std::int64_t position = own.length + first, slot = position % kPageTokens;
    const std::int64_t count = std::min(kPageTokens - slot, tokens - first);
    const auto exact = std::clamp<std::int64_t>(sinks - position, 0, count);
    parts.push_back({first + exact, count - exact, position / kPageTokens, static_cast<int>(slot + exact), {}});
    first += count;
  }
  const auto each = [&](const auto& work) {
    parallel_for(static_cast<std::int64_t>(parts.size()), threads, [&](std::int64_t index) {
      for (const Side side : kSides) work(parts[static_cast<std::size_t>(index)], side);
    });
  };
  each([&](Part& part, Side side) {
    const std::span<const float> x = side == Side::Key ? key : value;
    try {
      shared.encoder(side).encode(
          x.subspan(static_cast<std::size_t>(part.first) * width, static_cast<std::size_t>(part.count) * width),
          part.encoded[static_cast<int>(side)]);
    } catch (const ExactOverflow& overflow) {
      fail_overflow(layer, side, own.length + part.first, shared.page.key.head_dim, overflow);
    }
  });
  const auto writer = [&](std::int64_t page, Side side) {
    return PageWriter(shared.shape(side), shared.parts(side), shared.code_rows(side),
                      shared.pages.data(own.pages[static_cast<std::size_t>(page)]));
  };
  own.pages.reserve(static_cast<std::size_t>(layout::pages(own.length + tokens)));
  while (static_cast<std::int64_t>(own.pages.size()) < layout::pages(own.length + tokens)) {
    own.pages.push_back(shared.pages.take());
    for (const Side side : kSides) writer(static_cast<std::int64_t>(own.pages.size()) - 1, side).begin();
  }
  each([&](const Part& part, Side side) {
    writer(part.page, side).write(part.slot, part.encoded[static_cast<int>(side)]);
  });
  own.length += tokens;  // from here on crop_layer takes everything out again
  for (const Part& part : parts) {
    for (const Side side : kSides) {
      writer(part.page, side)
          .write_varying_outliers(part.slot, part.encoded[static_cast<int>(side)], pool_->overflow());
    }
  }
}

void PackedSequence::crop(std::int64_t tokens) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) crop_layer(static_cast<int>(layer), tokens);
}

void PackedSequence::crop_layer(int layer, std::int64_t tokens) {
  PackedPool::Layer& shared = pool_->layer(layer);
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  KVQ_ASSERT(tokens >= 0);
  if (tokens > own.length) return;
  const auto crop_page = [&](std::size_t page, int slots) {
    for (const Side side : kSides) {
      PageWriter(shared.shape(side), shared.parts(side), shared.code_rows(side), shared.pages.data(own.pages[page]))
          .crop(slots, pool_->overflow());
    }
  };
  const auto kept = static_cast<std::size_t>(layout::pages(tokens));
  while (own.pages.size() > kept) {
    crop_page(own.pages.size() - 1, 0);  // for its overflow blocks
    shared.pages.give_back(own.pages.back());
    own.pages.pop_back();
  }
  if (tokens % kPageTokens != 0) crop_page(kept - 1, static_cast<int>(tokens % kPageTokens));
  own.pages.shrink_to_fit();
  for (std::vector<std::uint16_t>& exact : own.exact) {
    const auto numbers = static_cast<std::size_t>(tokens * shared.page.key.width());
    if (exact.size() > numbers) exact.resize(numbers), exact.shrink_to_fit();
  }
  own.length = tokens;
}

std::int64_t PackedSequence::bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const PackedPool::Layer& shared = pool_->layer(static_cast<int>(layer));
    const Layer& own = layers_[layer];
    const auto pages = static_cast<std::int64_t>(own.pages.size());
    bytes += pages * (shared.pages.block_bytes() + layout::kBlockTableBytes);
    for (const Side side : kSides) {
      bytes += static_cast<std::int64_t>(own.exact[static_cast<int>(side)].size() * sizeof(std::uint16_t));
      for (std::size_t page = 0; page < own.pages.size(); ++page) {
        const auto blocks = static_cast<std::int64_t>(chain(static_cast<int>(layer), side, page).size());
        bytes += blocks * pool_->overflow().block_bytes();
      }
    }
  }
  return bytes;
}

std::vector<std::uint32_t> PackedSequence::chain(int layer, Side side, std::size_t page) const {
  const PackedPool::Layer& shared = pool_->layer(layer);
  std::vector<std::uint32_t> blocks;
  if (!shared.shape(side).varying_outliers) return blocks;
  const std::int64_t link = layout::overflow_block(shared.shape(side)).link;
  const std::uint8_t* at =
      shared.pages.data(layers_[static_cast<std::size_t>(layer)].pages[page]) + shared.parts(side).overflow_link;
  for (auto block = load_number<std::uint32_t>(at); block != layout::kNoBlock; block = load_number<std::uint32_t>(at)) {
    blocks.push_back(block);
    at = pool_->overflow().data(block) + link;
  }
  return blocks;
}

std::vector<std::uint8_t> PackedSequence::content(int layer) const {
  const PackedPool::Layer& shared = pool_->layer(layer);
  const Layer& own = layers_[static_cast<std::size_t>(layer)];
  std::vector<std::uint8_t> bytes;
  for (std::size_t page = 0; page < own.pages.size(); ++page) {
    const std::size_t begin = bytes.size();
    const std::uint8_t* data = shared.pages.data(own.pages[page]);
    bytes.insert(bytes.end(), data, data + shared.pages.block_bytes());
    for (const Side side : kSides) {
      const std::int64_t link = layout::overflow_block(shared.shape(side)).link;
      std::size_t link_at = begin + static_cast<std::size_t>(shared.parts(side).overflow_link);
      std::uint32_t number = 0;
      for (const std::uint32_t block : chain(layer, side, page)) {
        store_number(bytes.data() + link_at, number++);
        link_at = bytes.size() + static_cast<std::size_t>(link);
        const std::uint8_t* from = pool_->overflow().data(block);
        bytes.insert(bytes.end(), from, from + pool_->overflow().block_bytes());
      }
    }
  }
  for (const std::vector<std::uint16_t>& exact : own.exact) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(exact.data());
    bytes.insert(bytes.end(), from, from + exact.size() * sizeof(std::uint16_t));
  }
  return bytes;
}

const std::uint8_t* PackedSequence::page(int layer, std::int64_t index) const {
  return pool_->layer(layer).pages.data(
      layers_[static_cast<std::size_t>(layer)].pages[static_cast<std::size_t>(index)]);
}

std::span<const std::uint16_t> PackedSequence::sinks(int layer, Side side) const {
  return layers_[static_cast<std::size_t>(layer)].exact[static_cast<int>(side)];
}

}  // namespace kvq
