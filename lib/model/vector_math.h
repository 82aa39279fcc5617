#pragma once
// Element-wise loops compiled for several instruction sets; the best one that the CPU has is chosen at run time.
// Results may differ in the last bit from one instruction set to another, never from run to run or with the number of
// threads.

#include <cstdint>
#include <vector>

namespace kvq {

struct VectorMath {
  const char* name;  ///< "avx512", "avx2" or "portable"
  float (*max)(const float* x, std::int64_t count);
  /// Σ exp(x − largest), summed in double; largest >= every x.
  double (*sum_exp)(const float* x, std::int64_t count, float largest);
  /// The same, and x becomes exp(x − largest).
  double (*exp_in_place)(float* x, std::int64_t count, float largest);
  /// Σ exp(a − a_offset) · (a − b − shift), summed in double; a_offset = log Σ exp(a).
  double (*divergence)(const float* a, const float* b, std::int64_t count, float a_offset, float shift);
  void (*scale)(float* x, std::int64_t count, float factor);
  /// Σ x², in double.
  double (*sum_squares)(const float* x, std::int64_t count);
  /// out = x · factor · weight.
  void (*scale_by)(const float* x, const float* weight, std::int64_t count, float factor, float* out);
  /// Σ a · b · c, in double.
  double (*dot3)(const float* a, const float* b, const float* c, std::int64_t count);
  /// out = p · a · b + q · c.
  void (*combine)(const float* a, const float* b, const float* c, std::int64_t count, float p, float q, float* out);
  /// out = silu(gate) · up.
  void (*silu_times)(const float* gate, const float* up, std::int64_t count, float* out);
  /// Gradients of silu_times: with s = sigmoid(gate), gate_grad = grad · up · s · (1 + gate · (1 − s)), up_grad = grad
  /// · gate · s.
  void (*silu_times_backward)(const float* gate, const float* up, const float* grad, std::int64_t count,
                              float* gate_grad, float* up_grad);
  /// out = gelu(gate) · up with gelu(x) = x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))).
  void (*gelu_times)(const float* gate, const float* up, std::int64_t count, float* out);
  /// Its gradients, as above.
  void (*gelu_times_backward)(const float* gate, const float* up, const float* grad, std::int64_t count,
                              float* gate_grad, float* up_grad);
  /// Rotates pairs (first, second) by the angles of the tables, or back with `sign` = −1.
  void (*rotate)(const float* first, const float* second, const float* cosine, const float* sine, float sign,
                 std::int64_t count, float* out_first, float* out_second);
};

/// The variants that this CPU can run, best first.
const std::vector<VectorMath>& vector_math_variants();

inline const VectorMath& vector_math() {
  static const VectorMath& best = vector_math_variants().front();
  return best;
}

}  // namespace kvq
