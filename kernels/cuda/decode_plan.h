#pragma once
// How one block of the decode kernel divides its work and its shared memory. Host and device agree through this.
//
// A block serves one kv head of one sequence over a contiguous run of its pages, and up to four query heads of it (more
// of them make more blocks). Every warp takes pages in turn and does all that there is to a page; at the end their
// shares are added up.
//
//   tables    two codes -> two fp16 numbers, one copy per bank: rows of 256 bytes, 128 for keys, 128 for values
//   of the head: queries, angles, ranges of its keys, and what outliers of keys need of a channel
//   of a warp: codes of keys and of values, angles, ranges and lists of outliers of a page, refilled as soon as they
//   are
//             used up; scratch

#include <cstdint>

#include <kvq/kernels/layout/page.h>

namespace kvq::cuda {

/// Of a block; sets how many registers a thread has.
constexpr int max_warps(int head_dim) { return head_dim > 128 ? 8 : 12; }
inline constexpr int kSubTiles = 4;      ///< 16-token tiles of a page
inline constexpr int kBlockQueries = 4;  ///< query heads of a kv head that a block serves
inline constexpr int kTableRowBytes = 256;
/// Bytes from one query's weights of a page, 64 of fp16, to the next one's.
inline constexpr int kOwnWeightStride = 144;
/// Weights of a token, four of fp16, for its outliers; a gap after every 8 tokens keeps lanes out of each other's
/// banks.
constexpr int weight_cell(int token) { return 8 * (token + (token >> 3)); }
inline constexpr int kWeightCellBytes = 8 * (layout::kPageTokens + layout::kPageTokens / 8);
/// Entries of a list of outliers that a warp works on at once, kChunks of a lane: for 32 of them, rows of 16 bytes and
/// places of 2 bytes.
inline constexpr int kChunks = 3, kRowBytes = 32 * 16, kPlaceBytes = 32 * 2;

/// What a step of fast pairs of keys is multiplied by.
inline constexpr int kFastMapBytes = 3 * 32 * 16;

/// Code widths with a kernel of their own, for keys and values of equal width; every other pair of widths takes the
/// kernel for any width. All four for the common sizes of heads: every further kernel costs a quarter of a minute to
/// compile.
constexpr bool has_own_kernel(int bits, int head_dim) {
  const bool common = head_dim == 64 || head_dim == 128;
  return bits == 4 || (common && (bits == 2 || bits == 3 || bits == 8));
}

/// Instead of a width: rows of widths or levels of their own (code_rows.h).
inline constexpr int kOwnRows = -1;

/// Rows of the two tables of a kernel that is specialised for `bits`; 0: any width.
constexpr int table_rows(int bits) { return bits == 3 ? 64 : 256; }

/// Where the parts of a list of outliers lie in a warp's memory; every part begins with up to 15 bytes that are not its
/// own, as copies begin at multiples of 16.
struct ListPlan {
  int room = 0;     ///< entries for which a page has room
  int entries = 0;  ///< most that are copied; what is beyond is read from where it is
  int values = 0, channels = 0, tokens = 0;
};

struct DecodePlan {
  int warps = 0;
  // Byte offsets in shared memory; the tables are at 0.
  int queries = 0;    ///< [step][4 queries][4] of 8 bytes
  int angles = 0;     ///< [fast step][3][32] of 16 bytes; where all steps are fast [step][32]
  int ratios = 0;     ///< [step][2][4] fp16 pairs
  int ranges = 0;     ///< [step][4] of 16 bytes: key scales and zeros
  int key_rows = 0;   ///< [head_dim] of 16 bytes: what an outlier of a key is multiplied by, see outliers.cuh
  int key_turns = 0;  ///< [head_dim] of 8 bytes: turns per position and what code 0 stands for
  int units = 0;      ///< [4 queries] of 8 bytes: of scores, and of what outliers of keys add to them
  int normals = 0;    ///< [warps][4 queries] of 8 bytes: largest score and sum of weights
  int rows = 0;       ///< [head_dim] of 4 bytes: RowInfo of keys, with kOwnRows
  int last = 0;       ///< whether this block is the last one of its head
  int barriers = 0;   ///< [warps][kBarriers]
  int warp_memory = 0, warp_bytes = 0;
  // Offsets in a warp's memory.
  int key_codes = 0, value_codes = 0, base_angles = 0, value_ranges = 0;
  ListPlan key_list, value_list;
  int scratch = 0;  ///< weights times the values' scales [4 queries] of kOwnWeightStride, or rows and places of entries
  int weights = 0;  ///< [64] of 8 bytes, see weight_cell()
  int bytes = 0;

  constexpr int threads() const { return warps * 32; }
};

/// Room for the outliers of a head that a page has on average, and for four standard deviations more.
constexpr int list_entries(const layout::SideShape& side) {
  if (!side.has_outliers()) return 0;
  const std::int64_t mean = layout::div_up(side.page_entries(), side.kv_heads);
  std::int64_t root = 1;
  while (root * root < mean) ++root;
  const std::int64_t entries = layout::div_up(mean + 4 * root, 32) * 32;
  return static_cast<int>(entries < 512 ? entries : 512);
}

constexpr DecodePlan decode_plan(const layout::PageLayout& page, int specialised_bits, int warps) {
  DecodePlan plan;
  plan.warps = warps;
  const int head_dim = page.key.head_dim, steps = head_dim / 16;
  const bool key_outliers = page.key.has_outliers(), value_outliers = page.value.has_outliers();
  int end = table_rows(specialised_bits) * kTableRowBytes;
  const auto place = [&end](int& offset, int bytes) {
    offset = end;
    end += (bytes + 15) / 16 * 16;
  };
  place(plan.queries, steps * kBlockQueries * 4 * 8);
  const int fast_bytes = (steps - steps / 2) * kFastMapBytes, angle_bytes = steps * 32 * 16;
  place(plan.angles, fast_bytes > angle_bytes ? fast_bytes : angle_bytes);
  place(plan.ratios, steps * 8 * 4);
  place(plan.ranges, steps * 4 * 16);
  place(plan.key_rows, key_outliers ? head_dim * 16 : 0);
  place(plan.key_turns, key_outliers ? head_dim * 8 : 0);
  place(plan.units, kBlockQueries * 8);
  place(plan.normals, warps * kBlockQueries * 8);
  place(plan.rows, specialised_bits == kOwnRows ? head_dim * 4 : 0);
  place(plan.last, 16);
  place(plan.barriers, warps * 3 * 8);
  plan.warp_memory = end;
  end = 0;
  // Copies begin at multiples of 16 and are read in words: own rows may begin and end anywhere.
  const int slack = specialised_bits == kOwnRows ? 32 : 0;
  place(plan.key_codes, static_cast<int>(page.key.code_bytes() / page.key.kv_heads) + slack);
  place(plan.value_codes, static_cast<int>(page.value.code_bytes() / page.value.kv_heads) + slack);
  place(plan.base_angles, steps * 128);
  place(plan.value_ranges, static_cast<int>(layout::range_page_bytes()) + slack);
  const auto place_list = [&place](ListPlan& list, const layout::SideShape& side) {
    list.room = static_cast<int>(side.page_entries());
    list.entries = list_entries(side);
    if (list.entries == 0) return;
    place(list.values, list.entries * layout::kHalfBytes + 16);
    place(list.channels, list.entries * side.channel_bytes() + 16);
    place(list.tokens, static_cast<int>(layout::outlier_token_bytes(list.entries)) + 32);
  };
  place_list(plan.key_list, page.key);
  place_list(plan.value_list, page.value);
  const int entry_bytes = kChunks * (kRowBytes + kPlaceBytes), weight_bytes = kBlockQueries * kOwnWeightStride;
  place(plan.scratch, entry_bytes > weight_bytes ? entry_bytes : weight_bytes);
  place(plan.weights, value_outliers ? kWeightCellBytes : 0);
  plan.warp_bytes = end;
  plan.bytes = plan.warp_memory + warps * plan.warp_bytes;
  return plan;
}

/// As many warps as fit. warps = 0: not even one does.
constexpr DecodePlan best_decode_plan(const layout::PageLayout& page, int specialised_bits, int shared_bytes) {
  for (int warps = max_warps(page.key.head_dim); warps > 0; --warps) {
    const DecodePlan plan = decode_plan(page, specialised_bits, warps);
    if (plan.bytes <= shared_bytes) return plan;
  }
  return {};
}

}  // namespace kvq::cuda
