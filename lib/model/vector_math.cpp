#include <kvq/model/vector_math.h>

#include <algorithm>
#include <cstring>

namespace kvq {

namespace {

// Vectors of the compiler's own vector extension, as wide as the registers of the instruction set: wider ones would be
// split for arithmetic, but taken apart number by number for comparisons. All loops are inlined into functions compiled
// for one instruction set each, at the end.
template <int kWidth>
struct Vector {
  typedef float Floats __attribute__((vector_size(kWidth * sizeof(float))));
  typedef std::int32_t Ints __attribute__((vector_size(kWidth * sizeof(std::int32_t))));
};

/// Terms per lane that are summed in fp32 before they go to double.
constexpr std::int64_t kFloatTerms = 32;

#define KVQ_INLINE inline __attribute__((always_inline))

template <class Floats>
KVQ_INLINE void load(const float* from, std::int64_t count, Floats& to) {
  std::memcpy(&to, from, count * sizeof(float));
}
template <class Floats>
KVQ_INLINE void store(const Floats& from, std::int64_t count, float* to) {
  std::memcpy(to, &from, count * sizeof(float));
}

/// The loops for vectors of kLanes floats.
template <int kLanes>
struct Loops {
  using Floats = typename Vector<kLanes>::Floats;
  using Ints = typename Vector<kLanes>::Ints;

  /// e^x with a relative error below 2e-7. NaN stays NaN; results stay within the normal numbers.
  static KVQ_INLINE void exponential(Floats& x) {
    const Floats low = Floats{} - 87.3f, high = Floats{} + 88.3f;
    x = x < low ? low : x;  // comparisons with NaN are false, so it passes
    x = x > high ? high : x;
    // x = n ln 2 + r, |r| <= ln 2 / 2; adding 1.5 · 2^23 rounds to an integer and leaves it in the low bits.
    const Floats magic = Floats{} + 12582912.0f;
    const Floats shifted = x * 1.44269504088896341f + magic;
    const Floats n = shifted - magic;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    // Taylor to degree 7, whose remainder at the ends is 5e-9.
    Floats p = Floats{} + 1.98412698e-4f;
    p = p * r + 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Ints bits;
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits - 0x4b400000 + 127) << 23;
    Floats power;
    std::memcpy(&power, &bits, sizeof(power));
    x = p * power;
  }

  /// sigmoid(x) = 1 / (1 + e^−x).
  static KVQ_INLINE void sigmoid(Floats& x) {
    x = -x;
    exponential(x);
    x = 1.0f / (1.0f + x);
  }

  static KVQ_INLINE double lanes_sum(const Floats& lanes) {
    double total = 0;
    for (std::int64_t lane = 0; lane < kLanes; ++lane) total += lanes[lane];
    return total;
  }

  /// Calls body(position, lanes) for whole vectors, then once for the tail.
  template <class Body>
  static KVQ_INLINE void for_vectors(std::int64_t count, const Body& body) {
    std::int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) body(at, kLanes);
    if (at < count) body(at, count - at);
  }

  /// Σ term(position, lanes): fp32 within kFloatTerms vectors, double beyond; `term` gives 0 in lanes past the end.
  template <class Term>
  static KVQ_INLINE double sum_vectors(std::int64_t count, const Term& term) {
    double total = 0;
    Floats part = {};
    std::int64_t terms = 0;
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats value = {};
          term(at, lanes, value);
          part += value;
          if (++terms == kFloatTerms) {
            total += lanes_sum(part);
            part = Floats{};
            terms = 0;
          }
        });
    return total + lanes_sum(part);
  }

  static KVQ_INLINE float max(const float* x, std::int64_t count) {
    Floats best = Floats{} + x[0];
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats value = Floats{} + x[0];
          load(x + at, lanes, value);
          best = value > best ? value : best;
        });
    float result = best[0];
    for (std::int64_t lane = 1; lane < kLanes; ++lane) result = std::max(result, best[lane]);
    return result;
  }

  static KVQ_INLINE double sum_exp(const float* x, std::int64_t count, float largest, float* out) {
    return sum_vectors(
        count, [&](std::int64_t at, std::int64_t lanes, Floats & value) __attribute__((always_inline)) {
          load(x + at, lanes, value);
          value = value - largest;
          exponential(value);
          if (out) store(value, lanes, out + at);
          if (lanes < kLanes) {
            for (std::int64_t lane = lanes; lane < kLanes; ++lane) value[lane] = 0;
          }
        });
  }

  static KVQ_INLINE double divergence(const float* a, const float* b, std::int64_t count, float a_offset, float shift) {
    return sum_vectors(
        count, [&](std::int64_t at, std::int64_t lanes, Floats & value) __attribute__((always_inline)) {
          Floats other = {};
          load(a + at, lanes, value);
          load(b + at, lanes, other);
          const Floats difference = value - other - shift;
          value = value - a_offset;
          exponential(value);
          value = value * difference;
          if (lanes < kLanes) {
            for (std::int64_t lane = lanes; lane < kLanes; ++lane) value[lane] = 0;
          }
        });
  }

  static KVQ_INLINE void scale(float* x, std::int64_t count, float factor) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats value = {};
          load(x + at, lanes, value);
          store(value * factor, lanes, x + at);
        });
  }

  static KVQ_INLINE double dot3(const float* a, const float* b, const float* c, std::int64_t count) {
    return sum_vectors(
        count, [&](std::int64_t at, std::int64_t lanes, Floats & value) __attribute__((always_inline)) {
          Floats second = {}, third = {};
          load(a + at, lanes, value);
          load(b + at, lanes, second);
          load(c + at, lanes, third);
          value = value * second * third;
        });
  }

  static KVQ_INLINE double sum_squares(const float* x, std::int64_t count) {
    return sum_vectors(
        count, [&](std::int64_t at, std::int64_t lanes, Floats & value) __attribute__((always_inline)) {
          load(x + at, lanes, value);
          value = value * value;
        });
  }

  static KVQ_INLINE void scale_by(const float* x, const float* weight, std::int64_t count, float factor, float* out) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats value = {}, by = {};
          load(x + at, lanes, value);
          load(weight + at, lanes, by);
          store(value * factor * by, lanes, out + at);
        });
  }

  static KVQ_INLINE void combine(const float* a, const float* b, const float* c, std::int64_t count, float p, float q,
                                 float* out) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats first = {}, second = {}, third = {};
          load(a + at, lanes, first);
          load(b + at, lanes, second);
          load(c + at, lanes, third);
          store(p * first * second + q * third, lanes, out + at);
        });
  }

  static KVQ_INLINE void silu_times(const float* gate, const float* up, std::int64_t count, float* out) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats g = {}, u = {};
          load(gate + at, lanes, g);
          load(up + at, lanes, u);
          Floats s = g;
          sigmoid(s);
          store(g * s * u, lanes, out + at);
        });
  }

  static KVQ_INLINE void silu_times_backward(const float* gate, const float* up, const float* grad, std::int64_t count,
                                             float* gate_grad, float* up_grad) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats g = {}, u = {}, d = {};
          load(gate + at, lanes, g);
          load(up + at, lanes, u);
          load(grad + at, lanes, d);
          Floats s = g;
          sigmoid(s);
          store(d * g * s, lanes, up_grad + at);
          store(d * u * s * (1.0f + g * (1.0f - s)), lanes, gate_grad + at);
        });
  }

  /// s = (1 + tanh t) / 2 = sigmoid(2 t) of t = √(2/π) (x + 0.044715 x³).
  static KVQ_INLINE void gelu_share(const Floats& x, Floats& s) {
    s = x * (1.59576912160573071f + 0.0713548162726009f * x * x);
    sigmoid(s);
  }

  static KVQ_INLINE void gelu_times(const float* gate, const float* up, std::int64_t count, float* out) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats g = {}, u = {}, s = {};
          load(gate + at, lanes, g);
          load(up + at, lanes, u);
          gelu_share(g, s);
          store(g * s * u, lanes, out + at);
        });
  }

  static KVQ_INLINE void gelu_times_backward(const float* gate, const float* up, const float* grad, std::int64_t count,
                                             float* gate_grad, float* up_grad) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats g = {}, u = {}, d = {}, s = {};
          load(gate + at, lanes, g);
          load(up + at, lanes, u);
          load(grad + at, lanes, d);
          gelu_share(g, s);
          store(d * g * s, lanes, up_grad + at);
          const Floats slope = 1.59576912160573071f + 0.2140644488178027f * g * g;  // d 2t / d x
          store(d * u * s * (1.0f + g * (1.0f - s) * slope), lanes, gate_grad + at);
        });
  }

  static KVQ_INLINE void rotate(const float* first, const float* second, const float* cosine, const float* sine,
                                float sign, std::int64_t count, float* out_first, float* out_second) {
    for_vectors(
        count, [&](std::int64_t at, std::int64_t lanes) __attribute__((always_inline)) {
          Floats a = {}, b = {}, c = {}, s = {};
          load(first + at, lanes, a);
          load(second + at, lanes, b);
          load(cosine + at, lanes, c);
          load(sine + at, lanes, s);
          s = s * sign;
          store(a * c - b * s, lanes, out_first + at);
          store(b * c + a * s, lanes, out_second + at);
        });
  }
};

// clang-format off
#define KVQ_VECTOR_MATH(set, lanes, attributes)                                                                                \
  attributes float max_##set(const float* x, std::int64_t n) { return Loops<lanes>::max(x, n); }                                   \
  attributes double sum_exp_##set(const float* x, std::int64_t n, float top) { return Loops<lanes>::sum_exp(x, n, top, nullptr); } \
  attributes double exp_in_place_##set(float* x, std::int64_t n, float top) { return Loops<lanes>::sum_exp(x, n, top, x); }        \
  attributes double divergence_##set(const float* a, const float* b, std::int64_t n, float offset, float shift) {          \
    return Loops<lanes>::divergence(a, b, n, offset, shift);                                                              \
  }                                                                                                                       \
  attributes void scale_##set(float* x, std::int64_t n, float f) { Loops<lanes>::scale(x, n, f); }                                 \
  attributes double sum_squares_##set(const float* x, std::int64_t n) { return Loops<lanes>::sum_squares(x, n); }                  \
  attributes void scale_by_##set(const float* x, const float* w, std::int64_t n, float f, float* out) {                   \
    Loops<lanes>::scale_by(x, w, n, f, out);                                                                                       \
  }                                                                                                                       \
  attributes double dot3_##set(const float* a, const float* b, const float* c, std::int64_t n) {                          \
    return Loops<lanes>::dot3(a, b, c, n);                                                                                         \
  }                                                                                                                       \
  attributes void combine_##set(const float* a, const float* b, const float* c, std::int64_t n, float p, float q,         \
                                float* out) {                                                                             \
    Loops<lanes>::combine(a, b, c, n, p, q, out);                                                                                  \
  }                                                                                                                       \
  attributes void silu_times_##set(const float* g, const float* u, std::int64_t n, float* out) {                          \
    Loops<lanes>::silu_times(g, u, n, out);                                                                                        \
  }                                                                                                                       \
  attributes void silu_times_backward_##set(const float* g, const float* u, const float* d, std::int64_t n, float* dg,    \
                                            float* du) {                                                                  \
    Loops<lanes>::silu_times_backward(g, u, d, n, dg, du);                                                                         \
  }                                                                                                                       \
  attributes void gelu_times_##set(const float* g, const float* u, std::int64_t n, float* out) {                          \
    Loops<lanes>::gelu_times(g, u, n, out);                                                                                        \
  }                                                                                                                       \
  attributes void gelu_times_backward_##set(const float* g, const float* u, const float* d, std::int64_t n, float* dg,    \
                                            float* du) {                                                                  \
    Loops<lanes>::gelu_times_backward(g, u, d, n, dg, du);                                                                         \
  }                                                                                                                       \
  attributes void rotate_##set(const float* a, const float* b, const float* c, const float* s, float sign,                \
                               std::int64_t n, float* oa, float* ob) {                                                    \
    Loops<lanes>::rotate(a, b, c, s, sign, n, oa, ob);                                                                             \
  }                                                                                                                       \
  constexpr VectorMath k_##set = {#set,           max_##set,  sum_exp_##set,  exp_in_place_##set,                         \
                                  divergence_##set,                                                                       \
                                  scale_##set,    sum_squares_##set,          scale_by_##set,                             \
                                  dot3_##set,     combine_##set,              silu_times_##set,                           \
                                  silu_times_backward_##set,                  gelu_times_##set,                           \
                                  gelu_times_backward_##set,                  rotate_##set};
// clang-format on

KVQ_VECTOR_MATH(portable, 4, )
#if defined(__x86_64__)
KVQ_VECTOR_MATH(avx2, 8, __attribute__((target("avx2,fma"))))
KVQ_VECTOR_MATH(avx512, 16, __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"))))
#endif

}  // namespace

const std::vector<VectorMath>& vector_math_variants() {
  static const std::vector<VectorMath> variants = [] {
    std::vector<VectorMath> found;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq")) {
      found.push_back(k_avx512);
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(k_avx2);
#endif
    found.push_back(k_portable);
    return found;
  }();
  return variants;
}

}  // namespace kvq
