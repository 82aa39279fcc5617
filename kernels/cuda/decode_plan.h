#pragma once
// How one block of the decode kernel divides its work and its shared memory. Host and device agree through this.
//
// A block serves `heads` kv heads of one sequence over a contiguous run of its pages, and up to four query heads of
// each (more of them make more blocks). Each of `dense_warps` = heads * pages_in_flight warps decodes one head of every
// pages_in_flight-th page; seven more warps serve them: two add the values' outliers, four the keys' outliers,
// one fetches what the heads of a page share.
//
//   tables   two codes -> two fp16 numbers, one copy per bank: rows of 256 bytes, 128 for keys, 128 for values
//   codes    per dense warp a page's keys and values, refilled as soon as they are used up
//   tails    two to four buffers, or as many as pages in flight: ranges, outliers, counts and link of a page; overflow
//   blocks fetched ahead

#include <cstdint>

#include <kvq/kernels/layout/page.h>

namespace kvq::cuda {

inline constexpr int kKeyWarps = 4, kValueWarps = 2;  ///< for outliers
inline constexpr int kServiceWarps = kKeyWarps + kValueWarps + 1;
inline constexpr int kMaxDenseWarps = 8;
inline constexpr int kSubTiles = 4;      ///< 16-token tiles of a page
inline constexpr int kBlockQueries = 4;  ///< query heads of a kv head that a block serves
/// Overflow blocks of a page that are fetched ahead: three standard deviations of the number of outliers, or more.
constexpr int staged_blocks(std::int64_t capacity) { return static_cast<int>(capacity / 128) + 3; }
inline constexpr int kTableRowBytes = 256;
/// Corrections of a page and head, 16 bytes a token: a gap after every 8 tokens and an odd number of cells, so that
/// lanes with different tokens or heads reach different banks.
inline constexpr int kCorrectionCells = 71;
constexpr int correction_cell(int token) { return token + (token >> 3); }
/// Bytes from one query's weights of a page, 64 of fp16, to the next one's: those for the service warps, those that a
/// dense warp writes for itself.
inline constexpr int kWeightStride = 160, kOwnWeightStride = 144;
inline constexpr int kWeightBytes = kBlockQueries * kWeightStride + 16;
inline constexpr int kCorrectionBuffers = 2;
inline constexpr int kBarriersPerDenseWarp = 2, kBarriersPerSlot = 6, kBarriersPerTail = 4;

/// Code widths with a kernel of their own, for keys and values of equal width; every other pair of widths takes the
/// kernel for any width. All four for the common sizes of heads: every further kernel costs a quarter of a minute to
/// compile.
constexpr bool has_own_kernel(int bits, int head_dim) {
  const bool common = head_dim == 64 || head_dim == 128;
  return bits == 4 || (common && (bits == 2 || bits == 3 || bits == 8));
}

/// Rows of the two tables of a kernel that is specialised for `bits`; 0: any width.
constexpr int table_rows(int bits) { return bits == 3 ? 64 : 256; }

struct DecodePlan {
  int heads = 0, pages_in_flight = 0;  ///< pages_in_flight is a power of two
  int flight_shift = 0;                ///< its logarithm
  int tail_shift = 0;  ///< of tail buffers: as many as pages in flight, at least two; twice that if they fit
  int tail_bytes = 0;
  // Byte offsets in shared memory; the tables are at 0.
  int key_codes = 0, value_codes = 0;  ///< [dense warp] pages
  int queries = 0;                     ///< [head][step][4 queries][4] of 8 bytes
  int angles = 0;                      ///< [step][32] of 16 bytes
  int ratios = 0;                      ///< [step][2][4] fp16 pairs
  int ranges = 0;                      ///< [head][step][4] of 16 bytes: key scales and zeros
  int outlier_query = 0;               ///< [head_dim][head][4 queries] fp16
  int code_zero = 0;                   ///< [head_dim][head] fp32: what code 0 of a key decodes to, times a unit
  int head_units = 0;                  ///< [head] fp32: unit of a stored key
  int extra_output = 0;  ///< [dense warp][value warp][head_dim][4 queries] fp32: outliers of values, sinks
  /// [buffer][dense warp][kCorrectionCells][4 queries] fp32: scores from outliers of keys. When a warp has read its
  /// own, they make room for weights times the values' scales: [4 queries] of kOwnWeightStride; without outliers only
  /// those.
  int corrections = 0, correction_bytes = 0;
  int weights = 0;  ///< [dense warp][4 queries] of kWeightStride: softmax weights
  int turns = 0;    ///< [head_dim / 2] u64
  int starts = 0;   ///< [64][groups] i32: where a token's outliers of a group of heads begin
  int tails = 0, staged = 0, barriers = 0;
  int staged_entries = 0;  ///< of each tail buffer's list of overflow, 3 bytes each
  int base_angles = 0;     ///< [tail buffer][step][2][4] of 16 bytes
  int bytes = 0;

  constexpr int tail_buffers() const { return 1 << tail_shift; }
  constexpr int dense_warps() const { return heads * pages_in_flight; }
  constexpr int threads() const { return (dense_warps() + kServiceWarps) * 32; }
};

/// Groups of kv heads with a count of outliers of their own that `heads` heads touch, wherever they begin.
constexpr int touched_groups(int heads, int head_dim) {
  const int together = layout::outlier_group_heads(head_dim);
  return together == 1 ? heads : (heads + 2 * together - 2) / together;
}

constexpr DecodePlan decode_plan(const layout::PageLayout& page, int specialised_bits, int heads, int pages_in_flight,
                                 bool more_tails = false) {
  DecodePlan plan;
  plan.heads = heads;
  plan.pages_in_flight = pages_in_flight;
  while (1 << plan.flight_shift < pages_in_flight) ++plan.flight_shift;
  plan.tail_shift = (plan.flight_shift > 1 ? plan.flight_shift : 1) + (more_tails ? 1 : 0);
  plan.tail_bytes = static_cast<int>(page.bytes - page.key_parts.ranges);
  const int head_dim = page.key.head_dim, steps = head_dim / 16, warps = plan.dense_warps();
  const bool key_outliers = page.key.varying_outliers, value_outliers = page.value.outliers_per_end > 0;
  int end = table_rows(specialised_bits) * kTableRowBytes;
  const auto place = [&end](int& offset, int bytes) {
    offset = end;
    end += (bytes + 15) / 16 * 16;
  };
  place(plan.key_codes, warps * static_cast<int>(layout::code_page_bytes(head_dim, page.key.bits)));
  place(plan.value_codes, warps * static_cast<int>(layout::code_page_bytes(head_dim, page.value.bits)));
  place(plan.queries, heads * steps * kBlockQueries * 4 * 8);
  place(plan.angles, steps * 32 * 16);
  place(plan.ratios, steps * 8 * 4);
  place(plan.ranges, heads * steps * 4 * 16);
  place(plan.outlier_query, key_outliers ? heads * head_dim * 8 : 0);
  place(plan.code_zero, key_outliers ? heads * head_dim * 4 : 0);
  place(plan.head_units, heads * 4);
  place(plan.extra_output, warps * kValueWarps * head_dim * kBlockQueries * 4);
  plan.correction_bytes = key_outliers ? kCorrectionCells * 16 : kBlockQueries * kOwnWeightStride;
  place(plan.corrections, kCorrectionBuffers * warps * plan.correction_bytes);
  place(plan.weights, value_outliers ? warps * kWeightBytes : 0);
  place(plan.turns, head_dim / 2 * 8);
  place(plan.starts, key_outliers ? layout::kPageTokens * touched_groups(heads, head_dim) * 4 : 0);
  place(plan.tails, plan.tail_buffers() * plan.tail_bytes);
  place(plan.base_angles, plan.tail_buffers() * steps * 128);
  plan.staged_entries = staged_blocks(page.key.outlier_capacity) * layout::kOutlierBlockEntries;
  place(plan.staged, key_outliers ? plan.tail_buffers() * plan.staged_entries * 3 : 0);
  place(plan.barriers, (kMaxDenseWarps * kBarriersPerDenseWarp + pages_in_flight * kBarriersPerSlot +
                        plan.tail_buffers() * kBarriersPerTail) *
                           8);
  plan.bytes = end;
  return plan;
}

/// As many dense warps as fit, of as many different heads as possible: heads of a page share its outliers. One head per
/// block where every head has a codebook of its own. heads = 0: does not fit.
constexpr DecodePlan best_decode_plan(const layout::PageLayout& page, int specialised_bits, bool own_books,
                                      int shared_bytes) {
  DecodePlan best;
  const int kv_heads = page.key.kv_heads;
  for (int blocks = 1; blocks <= kv_heads; ++blocks) {
    const int heads = own_books ? 1 : (kv_heads + blocks - 1) / blocks;
    if (heads > kMaxDenseWarps) continue;
    for (int in_flight = kMaxDenseWarps; in_flight >= 1; in_flight /= 2) {
      if (in_flight * heads > kMaxDenseWarps) continue;
      const DecodePlan plan = decode_plan(page, specialised_bits, heads, in_flight);
      if (plan.bytes <= shared_bytes) {
        if (plan.dense_warps() > best.dense_warps()) best = plan;
        break;
      }
    }
  }
  if (best.heads == 0) return best;
  const DecodePlan roomy = decode_plan(page, specialised_bits, best.heads, best.pages_in_flight, true);
  return roomy.bytes <= shared_bytes ? roomy : best;
}

}  // namespace kvq::cuda
