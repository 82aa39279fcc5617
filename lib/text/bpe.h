#pragma once
// Byte-pair merging of one word: always the pair of best rank, leftmost first (Sennrich et al. 2016; SentencePiece's
// BPE is the same with score order as rank). O(n log n) in the word's length, so a megabyte without a break is no
// problem.

#include <cstdint>
#include <vector>

namespace kvq {

struct Merge {
  std::int32_t left = 0, right = 0, result = 0;  ///< symbol ids
  std::int32_t rank = 0;                         ///< lower merges first; equal ranks merge from left to right
};

class MergeTable {
 public:
  struct Found {
    std::int32_t rank = -1, result = -1;  ///< rank −1: the pair does not merge
  };

  MergeTable() = default;
  /// A pair given twice keeps its last entry, as in Hugging Face's map.
  explicit MergeTable(const std::vector<Merge>& merges);
  Found find(std::int32_t left, std::int32_t right) const;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Found found;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};
  static std::uint64_t hash(std::uint64_t key);
  std::vector<Slot> slots_;  ///< open addressing, a power of two, at most half full
};

/// Working memory of one thread.
class BpeMerger {
 public:
  explicit BpeMerger(const MergeTable& table) : table_(table) {}
  /// Replaces the symbols of a word by those that are left after all merges.
  void merge(std::vector<std::int32_t>& symbols);

 private:
  struct Candidate {
    std::int32_t rank, left_symbol, right_symbol, result;
    std::size_t position;
  };
  void push(const std::vector<std::int32_t>& symbols, std::size_t left, std::size_t right);

  const MergeTable& table_;
  std::vector<Candidate> heap_;
  std::vector<std::size_t> next_, previous_;
};

}  // namespace kvq
