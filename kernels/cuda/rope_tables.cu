// Rotation tables of decode attention.
#include <algorithm>
#include <cmath>

#include <kvq/kernels/cuda/decode_attention.h>
#include <kvq/kernels/cuda/device_ops.cuh>

namespace kvq::cuda {

namespace {

struct Turns {
  std::uint64_t of_pair[128];
};

std::int64_t key_angle_words(int head_dim) { return std::int64_t{head_dim / 16} * 32 * 4; }
std::int64_t ratio_words(int head_dim) { return std::int64_t{head_dim / 16} * 8; }
std::int64_t base_angle_words(int head_dim) { return std::int64_t{head_dim / 16} * 8 * 4; }  // per page
std::int64_t base_pages(std::int64_t tokens) { return layout::pages(std::max<std::int64_t>(tokens, 1)); }

/// Turn per token in (-1/2, 1/2].
__host__ __device__ double signed_turns(std::uint64_t turns) {
  return static_cast<double>(static_cast<std::int64_t>(turns)) * 0x1p-64;
}

/// Radians from the middle of a page to its ends.
__host__ __device__ double reach_of(std::uint64_t turns) {
  return signed_turns(turns) * 6.283185307179586 * (layout::kPageTokens / 2);
}

/// A cubic in u is cos(reach u) and sin(reach u), |u| <= 1, to 2e-4 up to here.
constexpr double kLongestReach = 0.44;

/// Bessel function of the first kind, |x| < 1.
__device__ double bessel(int order, double x) {
  double term = 1.0, sum = 0.0;
  for (int k = 1; k <= order; ++k) term *= 0.5 * x / k;
  for (int k = 1; k < 10; ++k) {
    sum += term;
    term *= -0.25 * x * x / (k * (k + order));
  }
  return sum;
}

/// Chebyshev series of cos(reach u) and sin(reach u), cut off: cosine[0] + cosine[1] u^2, sine[0] u + sine[1] u^3.
struct Cubic {
  double cosine[2], sine[2];
  __device__ explicit Cubic(double reach)
      : cosine{bessel(0, reach) + 2 * bessel(2, reach), -4 * bessel(2, reach)},
        sine{2 * bessel(1, reach) + 6 * bessel(3, reach), -8 * bessel(3, reach)} {}
};

__device__ double2 exact_cos_sin(std::uint64_t turns_per_step, std::uint64_t position) {
  // The product's high bits, whole turns, fall away; what is left is exact to 2^-53 of a turn.
  double sine, cosine;
  sincospi(2.0 * signed_turns(turns_per_step * position), &sine, &cosine);
  return make_double2(cosine, sine);
}

/// A pair of fp16 numbers of the two pairs of channels that lane t has in a step.
template <typename Function>
__device__ std::uint32_t both_pairs(const Turns& turns, int step, int t, const Function& number) {
  return pack_halves(static_cast<float>(number(turns.of_pair[8 * step + t])),
                     static_cast<float>(number(turns.of_pair[8 * step + t + 4])));
}

/// See head_warp.cuh for what each is.
__global__ void rope_kernel(const Turns turns, int head_dim, int fast_steps, std::int64_t pages,
                            std::uint64_t* turns_out, std::uint32_t* key_angles, std::uint32_t* ratios,
                            std::uint32_t* base_angles) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int steps = head_dim / 16;
  if (index < head_dim / 2) turns_out[index] = turns.of_pair[index];
  if (index < steps * 32) {
    const int lane = static_cast<int>(index % 32), step = static_cast<int>(index / 32), g = lane / 4;
    for (int r = 0; r < 2; ++r) {
      const auto offset = static_cast<std::uint64_t>(8 * g + r);
      std::uint32_t* words = key_angles + index * 4 + 2 * r;
      words[0] = both_pairs(turns, step, lane % 4, [&](std::uint64_t turn) { return exact_cos_sin(turn, offset).x; });
      words[1] = both_pairs(turns, step, lane % 4, [&](std::uint64_t turn) { return exact_cos_sin(turn, offset).y; });
    }
  }
  const int t = static_cast<int>(index % 4), odd = static_cast<int>(index / 4 % 2);
  if (index < steps * 8) {
    ratios[index] = both_pairs(turns, static_cast<int>(index / 8), t, [&](std::uint64_t turn) {
      const Cubic cubic(reach_of(turn));
      const double* of = odd ? cubic.sine : cubic.cosine;
      return of[0] == 0.0 || fabs(reach_of(turn)) > kLongestReach ? 0.0 : of[1] / of[0];
    });
  }
  if (index >= pages * steps * 8) return;
  const int step = static_cast<int>(index / 8 % steps);
  const auto begin = static_cast<std::uint64_t>(index / (8 * steps)) * layout::kPageTokens;
  std::uint32_t* words = base_angles + index * 4;
  if (step < fast_steps) {
    for (int two = 0; two < 2; ++two) {
      const std::uint64_t position = begin + 2 * (2 * two + odd);
      words[2 * two] = both_pairs(turns, step, t, [&](std::uint64_t turn) { return exact_cos_sin(turn, position).x; });
      words[2 * two + 1] =
          both_pairs(turns, step, t, [&](std::uint64_t turn) { return exact_cos_sin(turn, position).y; });
    }
  } else {
    // The coefficients of odd powers belong to the query turned by another quarter.
    const std::uint64_t middle = begin + layout::kPageTokens / 2;
    words[0] = both_pairs(turns, step, t, [&](std::uint64_t turn) {
      const Cubic cubic(reach_of(turn));
      const double2 angle = exact_cos_sin(turn, middle);
      return odd ? -angle.y * cubic.sine[0] : angle.x * cubic.cosine[0];
    });
    words[1] = both_pairs(turns, step, t, [&](std::uint64_t turn) {
      const Cubic cubic(reach_of(turn));
      const double2 angle = exact_cos_sin(turn, middle);
      return odd ? angle.x * cubic.sine[0] : angle.y * cubic.cosine[0];
    });
    words[2] = words[3] = 0;
  }
}

}  // namespace

std::size_t rope_table_bytes(int head_dim, std::int64_t tokens) {
  return 8 * static_cast<std::size_t>(head_dim / 2) +
         4 * static_cast<std::size_t>(key_angle_words(head_dim) + ratio_words(head_dim) +
                                      base_pages(tokens) * base_angle_words(head_dim));
}

Status build_rope_tables(const double* inverse_frequencies, int head_dim, std::int64_t tokens, void* memory,
                         RopeTables& tables, Stream stream) {
  if (head_dim <= 0 || head_dim > 256 || head_dim % 16 != 0) return Status::UnsupportedHeadDim;
  Turns turns = {};
  const int steps = head_dim / 16, half = steps - steps / 2;
  int too_fast = 0;  // steps up to the last pair that turns too far for a cubic
  for (int pair = 0; pair < head_dim / 2; ++pair) {
    const long double exact = inverse_frequencies[pair] / 6.283185307179586476925286766559005768L;
    const long double fraction = exact - std::floor(exact);
    turns.of_pair[pair] = static_cast<std::uint64_t>(std::min(fraction * 0x1p64L, 18446744073709551615.0L));
    if (std::fabs(reach_of(turns.of_pair[pair])) > kLongestReach) too_fast = pair / 8 + 1;
  }
  // The first half, or one less; or all.
  const int fast_steps = too_fast > half ? steps : too_fast == half ? half : half - 1;
  const std::int64_t pages = base_pages(tokens);
  auto* turns_out = static_cast<std::uint64_t*>(memory);
  // All parts are multiples of 16 bytes.
  auto* key_angles = reinterpret_cast<std::uint32_t*>(turns_out + head_dim / 2);
  auto* ratios = key_angles + key_angle_words(head_dim);
  auto* base_angles = ratios + ratio_words(head_dim);
  const std::int64_t threads = std::max(pages * base_angle_words(head_dim) / 4, key_angle_words(head_dim) / 4);
  rope_kernel<<<static_cast<unsigned>(layout::div_up(threads, 256)), 256, 0, stream>>>(
      turns, head_dim, fast_steps, pages, turns_out, key_angles, ratios, base_angles);
  tables = {turns_out, key_angles, ratios, base_angles, fast_steps, pages * layout::kPageTokens};
  return cudaGetLastError() == cudaSuccess ? Status::Ok : Status::LaunchFailed;
}

}  // namespace kvq::cuda
