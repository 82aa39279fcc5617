#pragma once
// The warps that add the values' outliers to the output; see service_warps.cuh.

#include <kvq/kernels/cuda/service_warps.cuh>

namespace kvq::cuda {

/// Outliers of values: lane = entry of a token, several tokens at a time. The entries of one token are of different
/// channels, so its lanes add to the output without atomics; tokens take turns.
template <int kDim>
class ValueOutliers : Service {
 public:
  __device__ ValueOutliers(const DecodeParams& p, const Share& s, char* memory, int l, int which)
      : Service(p, s, memory, l), part_(which) {}
  __device__ void run() {
    const bool all = share.heads == params.page.value.kv_heads;
    if (params.page.value.channel_bytes() == 1) {
      all ? run<std::uint8_t, true>() : run<std::uint8_t, false>();
    } else {
      all ? run<std::uint16_t, true>() : run<std::uint16_t, false>();
    }
  }

 private:
  static constexpr int kAhead = 2;  ///< sets of tokens whose entries are loaded together
  static constexpr int kTokens = layout::kPageTokens / kValueWarps;  ///< of a page, for each warp
  struct Entry {
    bool there = false;
    std::uint32_t output = 0;  ///< shared-memory address
    float4 products = {};      ///< by query
  };
  struct Page {
    const void* channels;
    const std::uint16_t* values;
    const std::uint32_t* ranges;
    const char* weights;
    std::uint32_t output;  ///< shared-memory address
  };

  /// `kAll`: the block has all heads of the page, so every entry is its own.
  template <typename Channel, bool kAll>
  __device__ void run() {
    const int entries = params.page.value.entries_per_token();
    const int tokens_at_once = entries >= 32 ? 1 : 32 / entries;
    const int own_token = lane / entries, own_entry = entries >= 32 ? lane : lane % entries;
    const bool used = own_token < tokens_at_once;
    // Where every head has a codebook of its own, a block has one head.
    const float level =
        __ldg(params.value_decoded + (params.value_books > 1 ? share.first_head << params.page.value.bits : 0));
    for (int index = 0; index < share.pages(); ++index) {
      barriers.wait_for_tail(index, kTailFull);
      const int first_warp = dense_warp(index);
      barrier_wait(barriers.slot(slot(index), kWeightsFull), turn(index) & 1);
      const Page page{part(index, params.page.value_parts.outlier_channels),
                      reinterpret_cast<const std::uint16_t*>(part(index, params.page.value_parts.outlier_values)),
                      reinterpret_cast<const std::uint32_t*>(part(index, params.page.value_parts.ranges)),
                      shared + params.plan.weights + first_warp * kWeightBytes,
                      shared_address(shared + params.plan.extra_output) +
                          (first_warp * kValueWarps + part_) * kDim * kBlockQueries * 4};
      for (int begin = 0; begin < entries; begin += 32) {
        const int at = begin + own_entry;
        const bool there = used && at < entries;
        for (int first = part_ * kTokens; first < (part_ + 1) * kTokens; first += kAhead * tokens_at_once) {
          if constexpr (!kAll) {
            bool any = false;
#pragma unroll
            for (int i = 0; i < kAhead; ++i) {
              const int token = first + i * tokens_at_once + own_token;
              any = any || is_own(channel_of<Channel>(page, there && is_in_part(token), token * entries + at));
            }
            if (!__any_sync(~0u, any)) continue;
          }
          Entry set[kAhead];
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            set[i] = load<Channel, kAll>(page, there, first + i * tokens_at_once + own_token, at, entries, level);
          }
#pragma unroll
          for (int i = 0; i < kAhead; ++i) {
            for (int turn = 0; turn < tokens_at_once; ++turn) {
              add(set[i], set[i].there && turn == own_token);
              __syncwarp();
            }
          }
        }
      }
      barrier_arrive(barriers.slot(slot(index), kWeightsEmpty));
      barrier_arrive(barriers.tail(index, kTailEmpty));
    }
  }

  __device__ bool is_in_part(int token) const { return token < (part_ + 1) * kTokens; }
  /// From the block's first head on; of no entry: -1.
  template <typename Channel>
  __device__ int channel_of(const Page& page, bool there, int place) const {
    return there ? static_cast<const Channel*>(page.channels)[place] - share.first_head * kDim : -1;
  }
  __device__ bool is_own(int channel) const { return channel >= 0 && channel < share.heads * kDim; }

  template <typename Channel, bool kAll>
  __device__ Entry load(const Page& page, bool there, int token, int at, int entries, float level) const {
    Entry entry;
    const bool inside = there && is_in_part(token);
    const int place = inside ? token * entries + at : 0, from = inside ? token : 0;
    const int channel = channel_of<Channel>(page, true, place);
    entry.there = inside && (kAll || is_own(channel));
    const unsigned own = entry.there ? channel : 0, head = own / kDim;
    const std::uint32_t range = page.ranges[from];
    // Heads' outputs are kValueWarps copies apart.
    entry.output = page.output + (head * (kValueWarps - 1) * kDim + own) * (kBlockQueries * 4);
    const float difference = half_bits_to_float(page.values[place]) - (low_float(range) + high_float(range) * level);
    const char* weights = page.weights + head * kWeightBytes + from * 2;
    const auto product = [&](int query) {
      return __half2float(*reinterpret_cast<const __half*>(weights + query * kWeightStride)) * difference;
    };
    entry.products = {product(0), product(1), product(2), product(3)};
    return entry;
  }

  /// Predicated, not branched: the turns of a warp are a chain of short latencies.
  __device__ void add(const Entry& entry, bool now) const {
    asm volatile(
        "{\n.reg .pred p;\n.reg .f32 x, y, z, w;\nsetp.ne.s32 p, %5, 0;\n@p ld.shared.v4.f32 {x, y, z, w}, [%0];\n"
        "@p add.f32 x, x, %1;\n@p add.f32 y, y, %2;\n@p add.f32 z, z, %3;\n@p add.f32 w, w, %4;\n"
        "@p st.shared.v4.f32 [%0], {x, y, z, w};\n}" ::"r"(entry.output),
        "f"(entry.products.x), "f"(entry.products.y), "f"(entry.products.z), "f"(entry.products.w),
        "r"(static_cast<int>(now))
        : "memory");
  }

  int part_;  ///< which of the value warps: its tokens, its copy of the output
};

}  // namespace kvq::cuda
