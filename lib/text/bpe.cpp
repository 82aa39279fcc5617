#include <kvq/text/bpe.h>

#include <algorithm>

#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);
constexpr std::int32_t kGone = -1;  // a symbol that was merged into its left neighbour

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) | static_cast<std::uint32_t>(right);
}

}  // namespace

std::uint64_t MergeTable::hash(std::uint64_t key) {  // the finalizer of MurmurHash3 (A. Appleby, public domain)
  key = (key ^ (key >> 33)) * 0xff51afd7ed558ccdULL;
  key = (key ^ (key >> 33)) * 0xc4ceb9fe1a85ec53ULL;
  return key ^ (key >> 33);
}

MergeTable::MergeTable(const std::vector<Merge>& merges) {
  std::size_t size = 16;
  while (size < 2 * merges.size()) size *= 2;
  slots_.resize(size);
  for (const Merge& merge : merges) {
    KVQ_ASSERT(merge.left >= 0 && merge.right >= 0 && merge.rank >= 0);
    const std::uint64_t key = pair_key(merge.left, merge.right);
    std::size_t at = hash(key) & (size - 1);
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & (size - 1);
    slots_[at] = {key, {merge.rank, merge.result}};
  }
}

MergeTable::Found MergeTable::find(std::int32_t left, std::int32_t right) const {
  if (slots_.empty()) return {};
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash(key) & mask; slots_[at].key != kEmpty; at = (at + 1) & mask) {
    if (slots_[at].key == key) return slots_[at].found;
  }
  return {};
}

void BpeMerger::push(const std::vector<std::int32_t>& symbols, std::size_t left, std::size_t right) {
  const MergeTable::Found found = table_.find(symbols[left], symbols[right]);
  if (found.rank >= 0) heap_.push_back({found.rank, symbols[left], symbols[right], found.result, left});
}

void BpeMerger::merge(std::vector<std::int32_t>& symbols) {
  const std::size_t count = symbols.size();
  if (count < 2) return;
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  };
  heap_.clear();
  next_.resize(count);
  previous_.resize(count);
  for (std::size_t at = 0; at < count; ++at) {
    previous_[at] = at == 0 ? kNone : at - 1;
    next_[at] = at + 1 == count ? kNone : at + 1;
    if (at > 0) push(symbols, at - 1, at);
  }
  std::make_heap(heap_.begin(), heap_.end(), later);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Candidate best = heap_.back();
    heap_.pop_back();
    const std::size_t left = best.position;
    if (symbols[left] != best.left_symbol) continue;  // outdated: its symbols have merged with others meanwhile
    const std::size_t right = next_[left];
    if (right == kNone || symbols[right] != best.right_symbol) continue;
    symbols[left] = best.result;
    symbols[right] = kGone;
    next_[left] = next_[right];
    if (next_[left] != kNone) previous_[next_[left]] = left;
    const auto add = [&](std::size_t first, std::size_t second) {
      const std::size_t before = heap_.size();
      push(symbols, first, second);
      if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
    };
    if (previous_[left] != kNone) add(previous_[left], left);
    if (next_[left] != kNone) add(left, next_[left]);
  }
  symbols.erase(std::remove(symbols.begin(), symbols.end(), kGone), symbols.end());
}

}  // namespace kvq
