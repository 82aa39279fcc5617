#pragma once
// How one block of the decode kernel divides its work and its shared memory. Host and device agree through this.
//
// A block serves `heads` kv heads of one sequence over a contiguous run of its pages. Each of `dense_warps` =
// heads * pages_in_flight warps decodes one head of every pages_in_flight-th page; four more warps serve them: one adds
// the values' outliers, two the keys' outliers (half a page each), one fetches what the heads of a page share.
//
//   tables   two codes -> two fp16 numbers, one copy per bank: rows of 256 bytes, 128 for keys, 128 for values
//   codes    per dense warp a page's keys and values, refilled by halves as they are used up
//   queries  per dense warp the queries, rotated to four positions of the present pair of pages
//   tails    two buffers: ranges, outliers, counts and link of a page; overflow blocks fetched ahead

#include <cstdint>

#include <kvq/kernels/layout/page.h>

namespace kvq::cuda {

inline constexpr int kServiceWarps = 4;
inline constexpr int kMaxDenseWarps = 8;
inline constexpr int kTailBuffers = 2;
inline constexpr int kGroupPages = 2;     ///< pages that share one set of rotated queries
inline constexpr int kSubTiles = 4;       ///< 16-token tiles of a page
inline constexpr int kStagedBlocks = 24;  ///< overflow blocks of a page that are fetched ahead
inline constexpr int kStagedEntries = kStagedBlocks * layout::kOutlierBlockEntries;
inline constexpr int kTableRowBytes = 256;
inline constexpr int kPlane = layout::kPageTokens + 8;  ///< tokens of a page, padded: planes of queries in other banks
inline constexpr int kBarriersPerDenseWarp = 8;
inline constexpr int kBarriersPerTail = 4;

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
  int heads = 0, pages_in_flight = 0;
  int queries = 0;  ///< query heads per kv head, rounded up to 2, 4 or 8
  int tail_bytes = 0;
  // Byte offsets in shared memory; the tables are at 0.
  int key_codes = 0, value_codes = 0;  ///< [dense warp] pages
  int rotated = 0;                     ///< [dense warp][step][2][queries][4] of 16 bytes
  int angles = 0;                      ///< [2 pages][step][32] of 16 bytes
  int ranges = 0;                      ///< [head][step][4] of 16 bytes: key scales and zeros
  int outlier_query = 0;               ///< [head][head_dim][queries] fp16
  int code_zero = 0;                   ///< [head][head_dim] fp32: what code 0 of a key decodes to, times a unit
  int head_units = 0;                  ///< [head] fp32: unit of outlier_query, [head] fp32: of a stored key
  int extra_output = 0;                ///< [dense warp][head_dim][queries] fp32: outliers of values, sinks
  int corrections = 0;                 ///< [dense warp][queries / 2][kPlane][2] fp32: scores from outliers of keys
  int weights = 0;                     ///< [dense warp][queries / 2][kPlane][2] fp16: softmax weights
  int turns = 0;                       ///< [head_dim / 2] u64
  int tails = 0, staged = 0, barriers = 0;
  int bytes = 0;

  constexpr int dense_warps() const { return heads * pages_in_flight; }
  constexpr int threads() const { return (dense_warps() + kServiceWarps) * 32; }
};

constexpr int padded_queries(int queries) { return queries <= 2 ? 2 : queries <= 4 ? 4 : 8; }

constexpr DecodePlan decode_plan(const layout::PageLayout& page, int specialised_bits, int queries, int heads,
                                 int pages_in_flight) {
  DecodePlan plan;
  plan.heads = heads;
  plan.pages_in_flight = pages_in_flight;
  plan.queries = padded_queries(queries);
  plan.tail_bytes = static_cast<int>(page.bytes - page.key_parts.ranges);
  const int head_dim = page.key.head_dim, steps = head_dim / 16, warps = plan.dense_warps();
  int end = table_rows(specialised_bits) * kTableRowBytes;
  const auto place = [&end](int& offset, int bytes) {
    offset = end;
    end += (bytes + 15) / 16 * 16;
  };
  place(plan.key_codes, warps * static_cast<int>(layout::code_page_bytes(head_dim, page.key.bits)));
  place(plan.value_codes, warps * static_cast<int>(layout::code_page_bytes(head_dim, page.value.bits)));
  place(plan.rotated, warps * steps * kSubTiles * plan.queries * 4 * 8);
  place(plan.angles, kGroupPages * steps * 32 * 16);
  place(plan.ranges, heads * steps * 4 * 16);
  place(plan.outlier_query, page.key.varying_outliers ? heads * head_dim * plan.queries * 2 : 0);
  place(plan.code_zero, page.key.varying_outliers ? heads * head_dim * 4 : 0);
  place(plan.head_units, 2 * heads * 4);
  place(plan.extra_output, warps * head_dim * plan.queries * 4);
  place(plan.corrections, page.key.varying_outliers ? warps * kPlane * plan.queries * 4 : 0);
  place(plan.weights, page.value.outliers_per_end > 0 ? warps * kPlane * plan.queries * 2 : 0);
  place(plan.turns, head_dim / 2 * 8);
  place(plan.tails, kTailBuffers * plan.tail_bytes);
  place(plan.staged, page.key.varying_outliers ? kTailBuffers * kStagedEntries * 3 : 0);
  place(plan.barriers, (kMaxDenseWarps * kBarriersPerDenseWarp + kTailBuffers * kBarriersPerTail) * 8);
  plan.bytes = end;
  return plan;
}

/// As many dense warps as fit, of as many different heads as possible: heads of a page share its outliers. One head per
/// block where every head has a codebook of its own. heads = 0: does not fit.
constexpr DecodePlan best_decode_plan(const layout::PageLayout& page, int specialised_bits, int queries, bool own_books,
                                      int shared_bytes) {
  DecodePlan best;
  const int kv_heads = page.key.kv_heads;
  for (int blocks = 1; blocks <= kv_heads; ++blocks) {
    const int heads = own_books ? 1 : (kv_heads + blocks - 1) / blocks;
    if (heads > kMaxDenseWarps) continue;
    for (int in_flight = kMaxDenseWarps / heads; in_flight >= 1; --in_flight) {
      const DecodePlan plan = decode_plan(page, specialised_bits, queries, heads, in_flight);
      if (plan.bytes <= shared_bytes) {
        if (plan.dense_warps() > best.dense_warps()) best = plan;
        break;
      }
    }
  }
  return best;
}

}  // namespace kvq::cuda
