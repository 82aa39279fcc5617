#include <kvq/cache/packed_sequence.h>

#include <algorithm>

#include <kvq/cache/cache_checks.h>
#include <kvq/cache/page_bytes.h>
#include <kvq/cache/page_writer.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

using layout::kPageTokens;

/// Pages that are encoded before they are written: bounds the memory for codes that wait.
constexpr std::int64_t kPagesAtOnce = 64;

/// Tokens of a side that go into one page.
struct Part {
  Side side;
  std::int64_t page;
  int slot;
  std::span<const float> x;
  bool within;  ///< their group of tokens has its ranges already
  EncodedTokens encoded;
};

/// Drops `count` numbers at the front, in place.
void drop_first(std::vector<std::uint16_t>& numbers, std::size_t count) {
  numbers.erase(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

PackedSequence::PackedSequence(std::shared_ptr<PackedPool> pool) : pool_(std::move(pool)) {
  layers_.resize(static_cast<std::size_t>(pool_->quantizer().shape.layers));
  const auto width = static_cast<std::size_t>(pool_->quantizer().shape.width());
  for (Layer& layer : layers_) {
    for (const Side side : kSides)
      layer.tail[static_cast<int>(side)].reserve(static_cast<std::size_t>(pool_->window(side).room()) * width);
  }
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
  const auto tokens = static_cast<std::int64_t>(key.size() / width);
  if (tokens == 0) return;
  PackedPool::Layer& shared = pool_->layer(layer);
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t after = own.length + tokens;
  std::vector<std::uint16_t> exact[2];
  Leaving leaves[2];
  for (const Side side : kSides) {
    const auto index = static_cast<int>(side);
    const ExactWindow& window = pool_->window(side);
    const std::span<const float> x = side == Side::Key ? key : value;
    const auto sinks = static_cast<std::size_t>(std::clamp<std::int64_t>(window.sinks - own.length, 0, tokens));
    try {
      exact[index] = shared.coder(side).to_exact(window.waits() ? x : x.first(sinks * width));
    } catch (const ExactOverflow& overflow) {
      fail_overflow(layer, side, own.length, shape.head_dim, overflow);
    }
    leaves[index] = leaving(layer, side, x, exact[index]);
  }
  try {
    std::int64_t pages = 0, first_page = layout::pages(after);
    for (const Side side : kSides) {
      const Leaving& leaves_now = leaves[static_cast<int>(side)];
      pages = std::max(pages, layout::pages(paged(side, leaves_now.end)));
      first_page = std::min(first_page, leaves_now.first / kPageTokens);
    }
    own.pages.reserve(static_cast<std::size_t>(std::max<std::int64_t>(pages, 0)));
    while (static_cast<std::int64_t>(own.pages.size()) < pages) {
      own.pages.push_back(shared.pages.take());
      for (const Side side : kSides) {
        PageWriter(shared.shape(side), shared.parts(side), shared.code_rows(side), shared.pages.data(own.pages.back()))
            .begin();
      }
    }
    for (; first_page < pages; first_page += kPagesAtOnce)
      write_pages(layer, first_page, std::min(pages, first_page + kPagesAtOnce), leaves, threads);
  } catch (...) {
    trim_pages(layer);
    throw;
  }
  for (const Side side : kSides) keep_exact(layer, side, std::move(exact[static_cast<int>(side)]), tokens);
  for (const Side side : kSides) own.settled[static_cast<int>(side)] = leaves[static_cast<int>(side)].end;
  own.length = after;
}

/// `x`: the tokens of the call; `exact`: the same in fp16 where the side waits.
PackedSequence::Leaving PackedSequence::leaving(int layer, Side side, std::span<const float> x,
                                                std::span<const std::uint16_t> exact) const {
  const Layer& own = layers_[static_cast<std::size_t>(layer)];
  const auto index = static_cast<int>(side);
  const ExactWindow& window = pool_->window(side);
  const std::int64_t width = pool_->quantizer().shape.width();
  const std::int64_t after = own.length + static_cast<std::int64_t>(x.size()) / width;
  Leaving result;
  result.end = std::max(own.settled[index], window.settled(after));
  result.first = std::clamp<std::int64_t>(window.sinks, own.settled[index], result.end);
  const std::int64_t first = result.first * width, end = result.end * width;  // numbers from the first token on
  if (!window.waits()) {
    result.x = x.subspan(static_cast<std::size_t>(first - own.length * width), static_cast<std::size_t>(end - first));
    return result;
  }
  const SideCoder& coder = pool_->layer(layer).coder(side);
  result.own.reserve(static_cast<std::size_t>(end - first));
  for (std::int64_t at = first; at < end; ++at) {
    const std::int64_t in_call = at - own.length * width;
    result.own.push_back(
        coder.from_exact(in_call >= 0 ? exact[static_cast<std::size_t>(in_call)]
                                      : own.tail[index][static_cast<std::size_t>(at - own.tail_first[index] * width)]));
  }
  result.x = result.own;
  return result;
}

void PackedSequence::write_pages(int layer, std::int64_t first_page, std::int64_t end_page, const Leaving (&leaving)[2],
                                 int threads) {
  PackedPool::Layer& shared = pool_->layer(layer);
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t width = shared.page.key.width();
  std::vector<Part> parts;
  for (const Side side : kSides) {
    const Leaving& tokens = leaving[static_cast<int>(side)];
    const int group = shared.shape(side).group_tokens;
    const std::int64_t end = std::min(tokens.end, end_page * kPageTokens);
    for (std::int64_t position = std::max(tokens.first, first_page * kPageTokens); position < end;) {
      // Whether it goes on in a group of tokens that was cropped when it was closed.
      const bool within = group > 0 && position % group != 0 && position > pool_->window(side).sinks;
      const std::int64_t unit = within ? group : kPageTokens;
      const std::int64_t count = std::min(unit - position % unit, end - position);
      parts.push_back({side,
                       position / kPageTokens,
                       static_cast<int>(position % kPageTokens),
                       tokens.x.subspan(static_cast<std::size_t>((position - tokens.first) * width),
                                        static_cast<std::size_t>(count * width)),
                       within,
                       {}});
      position += count;
    }
  }
  const auto page_of = [&](const Part& part) {
    return shared.pages.data(own.pages[static_cast<std::size_t>(part.page)]);
  };
  const auto writer = [&](const Part& part) {
    return PageWriter(shared.shape(part.side), shared.parts(part.side), shared.code_rows(part.side), page_of(part));
  };
  const auto encode = [&](Part& part) {
    const std::int64_t position = part.page * kPageTokens + part.slot;
    try {
      if (part.within) {
        std::vector<float> zero, scale;
        shared.decoder(part.side).group_ranges(page_of(part), part.slot, zero, scale);
        shared.coder(part.side).encode_within(part.x, zero, scale, part.encoded);
      } else {
        shared.coder(part.side).encode(part.x, position, part.encoded);
      }
    } catch (const ExactOverflow& overflow) {
      fail_overflow(layer, part.side, position, shared.page.key.head_dim, overflow);
    }
  };
  const auto each = [&](const auto& work) {  // a page is one thread's
    parallel_for(end_page - first_page, threads, [&](std::int64_t page) {
      for (Part& part : parts) {
        if (part.page == first_page + page) work(part);
      }
    });
  };
  each(encode);
  each([&](Part& part) { writer(part).write(part.slot, part.encoded); });
  for (const Part& part : parts) writer(part).write_outliers(part.slot, part.encoded, pool_->overflow());
}

/// `exact`: of all `tokens` of the call where the side waits, else of the sinks among them.
void PackedSequence::keep_exact(int layer, Side side, std::vector<std::uint16_t> exact, std::int64_t tokens) {
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  const auto index = static_cast<int>(side);
  const ExactWindow& window = pool_->window(side);
  const auto width = static_cast<std::size_t>(pool_->quantizer().shape.width());
  const auto new_sinks = static_cast<std::size_t>(std::clamp<std::int64_t>(window.sinks - own.length, 0, tokens));
  if (new_sinks > 0) {
    std::vector<std::uint16_t> longer;
    longer.reserve(own.exact[index].size() + new_sinks * width);  // exactly what is counted
    longer = own.exact[index];
    longer.insert(longer.end(), exact.begin(), exact.begin() + static_cast<std::ptrdiff_t>(new_sinks * width));
    own.exact[index] = std::move(longer);
  }
  if (!window.waits()) return;
  // What the first query of the call sees exact; it may begin among the new tokens.
  std::vector<std::uint16_t>& tail = own.tail[index];
  const std::int64_t first = std::max(own.settled[index], window.settled(own.length + 1));
  const auto dropped = static_cast<std::size_t>(first - own.tail_first[index]) * width;
  const std::size_t of_tail = std::min(dropped, tail.size());
  drop_first(tail, of_tail);
  tail.insert(tail.end(), exact.begin() + static_cast<std::ptrdiff_t>(dropped - of_tail), exact.end());
  own.tail_first[index] = first;
}

void PackedSequence::release(int layer) {
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  const auto width = static_cast<std::size_t>(pool_->quantizer().shape.width());
  for (const Side side : kSides) {
    if (!pool_->window(side).waits()) continue;
    const auto index = static_cast<int>(side);
    std::vector<std::uint16_t>& tail = own.tail[index];
    drop_first(tail, static_cast<std::size_t>(own.settled[index] - own.tail_first[index]) * width);
    own.tail_first[index] = own.settled[index];
    const std::size_t room = static_cast<std::size_t>(pool_->window(side).room()) * width;
    if (tail.capacity() <= room) continue;
    std::vector<std::uint16_t> usual;
    usual.reserve(room);
    usual.insert(usual.end(), tail.begin(), tail.end());
    tail = std::move(usual);
  }
}

void PackedSequence::crop(std::int64_t tokens) {
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) crop_layer(static_cast<int>(layer), tokens);
}

void PackedSequence::crop_layer(int layer, std::int64_t tokens) {
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  KVQ_ASSERT(tokens >= 0);
  if (tokens > own.length) return;
  const auto width = static_cast<std::size_t>(pool_->quantizer().shape.width());
  for (const Side side : kSides) {
    const auto index = static_cast<int>(side);
    own.settled[index] = std::min(own.settled[index], tokens);
    std::vector<std::uint16_t>& exact = own.exact[index];
    if (const std::size_t numbers = static_cast<std::size_t>(tokens) * width; exact.size() > numbers)
      exact.resize(numbers), exact.shrink_to_fit();
    if (!pool_->window(side).waits()) continue;
    own.tail[index].resize(static_cast<std::size_t>(std::max<std::int64_t>(tokens - own.tail_first[index], 0)) * width);
    own.tail_first[index] = std::min(own.tail_first[index], tokens);
  }
  own.length = tokens;
  trim_pages(layer);
  release(layer);
}

std::int64_t PackedSequence::paged(Side side, std::int64_t settled) const {
  const ExactWindow& window = pool_->window(side);
  return window.waits() && settled <= window.sinks ? 0 : settled;
}

void PackedSequence::trim_pages(int layer) {
  PackedPool::Layer& shared = pool_->layer(layer);
  Layer& own = layers_[static_cast<std::size_t>(layer)];
  std::int64_t kept = 0, first = static_cast<std::int64_t>(own.pages.size());
  for (const Side side : kSides) {
    const std::int64_t slots = paged(side, own.settled[static_cast<int>(side)]);
    kept = std::max(kept, layout::pages(slots));
    first = std::min(first, slots / kPageTokens);
  }
  for (std::int64_t page = first; page < static_cast<std::int64_t>(own.pages.size()); ++page) {
    for (const Side side : kSides) {
      const std::int64_t slots = paged(side, own.settled[static_cast<int>(side)]) - page * kPageTokens;
      if (slots >= kPageTokens) continue;
      PageWriter(shared.shape(side), shared.parts(side), shared.code_rows(side),
                 shared.pages.data(own.pages[static_cast<std::size_t>(page)]))
          .crop(static_cast<int>(std::max<std::int64_t>(slots, 0)), pool_->overflow());  // with its overflow blocks
    }
  }
  while (static_cast<std::int64_t>(own.pages.size()) > kept) {
    shared.pages.give_back(own.pages.back());
    own.pages.pop_back();
  }
  own.pages.shrink_to_fit();
}

std::int64_t PackedSequence::settled(int layer, Side side) const {
  return layers_[static_cast<std::size_t>(layer)].settled[static_cast<int>(side)];
}

std::int64_t PackedSequence::settled_for(int layer, Side side, std::int64_t position) const {
  const Layer& own = layers_[static_cast<std::size_t>(layer)];
  const std::int64_t settled = own.settled[static_cast<int>(side)];
  const ExactWindow& window = pool_->window(side);
  if (!window.waits()) return settled;
  return std::clamp(window.settled(position + 1), own.tail_first[static_cast<int>(side)], settled);
}

PackedSequence::Waiting PackedSequence::waiting(int layer, Side side) const {
  const Layer& own = layers_[static_cast<std::size_t>(layer)];
  return {own.tail_first[static_cast<int>(side)], own.tail[static_cast<int>(side)]};
}

std::int64_t PackedSequence::bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
    const PackedPool::Layer& shared = pool_->layer(static_cast<int>(layer));
    const Layer& own = layers_[layer];
    const auto pages = static_cast<std::int64_t>(own.pages.size());
    bytes += pages * (shared.pages.block_bytes() + layout::kBlockTableBytes);
    for (const Side side : kSides) {
      const auto index = static_cast<int>(side);
      bytes +=
          static_cast<std::int64_t>((own.exact[index].size() + own.tail[index].capacity()) * sizeof(std::uint16_t));
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
  const auto add = [&bytes](std::span<const std::uint16_t> halves) {
    const auto* from = reinterpret_cast<const std::uint8_t*>(halves.data());
    bytes.insert(bytes.end(), from, from + halves.size() * sizeof(std::uint16_t));
  };
  for (const std::vector<std::uint16_t>& exact : own.exact) add(exact);
  for (const Side side : kSides) {
    if (!pool_->window(side).waits()) continue;
    const auto index = static_cast<int>(side);
    const std::int64_t settled_too = own.settled[index] - own.tail_first[index];
    add(std::span(own.tail[index]).subspan(static_cast<std::size_t>(settled_too * shared.page.key.width())));
  }
  return bytes;
}

const std::uint8_t* PackedSequence::page(int layer, std::int64_t index) const {
  const PackedPool::Layer& shared = pool_->layer(layer);
  const std::vector<std::uint32_t>& pages = layers_[static_cast<std::size_t>(layer)].pages;
  if (index >= static_cast<std::int64_t>(pages.size())) return shared.blank.data();
  return shared.pages.data(pages[static_cast<std::size_t>(index)]);
}

std::span<const std::uint16_t> PackedSequence::sinks(int layer, Side side) const {
  return layers_[static_cast<std::size_t>(layer)].exact[static_cast<int>(side)];
}

}  // namespace kvq
