#include <kvq/model/elementwise.h>

#include <algorithm>
#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>  // nothing narrower: function.h, for a Node by hand, is 99 % of it

#include <kvq/core/error.h>
#include <kvq/model/cpu_loops.h>
#include <kvq/model/internal/tensor_ops.h>
#include <kvq/model/vector_math.h>

namespace kvq {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Elements that are worth handing to another thread.
constexpr std::int64_t kGrainElements = 1 << 15;

template <class Body>
void for_rows(std::int64_t rows, std::int64_t width, const Body& body) {
  at::parallel_for(0, rows, 1 + kGrainElements / (width + 1), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) body(row);
  });
}

at::Tensor empty_floats(at::IntArrayRef shape) { return at::empty(shape, at::TensorOptions().dtype(at::kFloat)); }

at::Tensor contiguous_floats(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

tensor_ops::Normed rms_norm_rows(const at::Tensor& input, const at::Tensor& weight, double eps) {
  const std::int64_t rows = input.size(0), width = input.size(1);
  at::Tensor result = empty_floats({rows, width}), inverse = empty_floats({rows});
  const float *in = input.const_data_ptr<float>(), *by = weight.const_data_ptr<float>();
  float *out = result.mutable_data_ptr<float>(), *scale = inverse.mutable_data_ptr<float>();
  for_rows(rows, width, [&](std::int64_t row) {
    const double squares = vector_math().sum_squares(in + row * width, width);
    scale[row] = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + eps));
    vector_math().scale_by(in + row * width, by, width, scale[row], out + row * width);
  });
  return {result, inverse};
}

at::Tensor rms_norm_rows_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                                  const at::Tensor& inverse) {
  const std::int64_t rows = grad.size(0), width = grad.size(1);
  at::Tensor result = empty_floats({rows, width});
  const float *in = input.const_data_ptr<float>(), *by = weight.const_data_ptr<float>();
  const float *scale = inverse.const_data_ptr<float>(), *above = grad.const_data_ptr<float>();
  float* out = result.mutable_data_ptr<float>();
  // y = w x r, r = (mean x² + eps)^-1/2:  dx = r w g − x r³ Σ(g w x) / width.
  for_rows(rows, width, [&](std::int64_t row) {
    const std::int64_t at = row * width;
    const double dot = vector_math().dot3(above + at, by, in + at, width), r = scale[row];
    vector_math().combine(above + at, by, in + at, width, scale[row],
                          static_cast<float>(-r * r * r * dot / static_cast<double>(width)), out + at);
  });
  return result;
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps) {
    const at::Tensor input = contiguous_floats(x);
    const tensor_ops::Normed normed =
        (takes_cpu_loops(input) ? rms_norm_rows : tensor_ops::rms_norm)(input, weight, eps);
    context->save_for_backward({input, weight, normed.inverse});
    return normed.result;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor grad = contiguous_floats(grads[0]);
    const auto gradient = takes_cpu_loops(grad) ? rms_norm_rows_backward : tensor_ops::rms_norm_backward;
    return {gradient(grad, saved[0], saved[1], saved[2]), {}, {}};
  }
};

at::Tensor gated_rows(const at::Tensor& input, bool gelu) {
  const auto times = gelu ? vector_math().gelu_times : vector_math().silu_times;
  const std::int64_t rows = input.size(0), width = input.size(1) / 2;
  at::Tensor result = empty_floats({rows, width});
  const float* in = input.const_data_ptr<float>();
  float* out = result.mutable_data_ptr<float>();
  for_rows(rows, width, [&](std::int64_t row) {
    const float* gate = in + row * 2 * width;
    times(gate, gate + width, width, out + row * width);
  });
  return result;
}

at::Tensor gated_rows_backward(const at::Tensor& grad, const at::Tensor& input, bool gelu) {
  const auto times_backward = gelu ? vector_math().gelu_times_backward : vector_math().silu_times_backward;
  const std::int64_t rows = grad.size(0), width = grad.size(1);
  at::Tensor result = empty_floats({rows, 2 * width});
  const float *in = input.const_data_ptr<float>(), *above = grad.const_data_ptr<float>();
  float* out = result.mutable_data_ptr<float>();
  for_rows(rows, width, [&](std::int64_t row) {
    const float* gate = in + row * 2 * width;
    float* gate_grad = out + row * 2 * width;
    times_backward(gate, gate + width, above + row * width, width, gate_grad, gate_grad + width);
  });
  return result;
}

struct Gated : torch::autograd::Function<Gated> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up, bool gelu) {
    const at::Tensor input = contiguous_floats(gate_up);
    context->save_for_backward({input});
    context->saved_data["gelu"] = gelu;
    return (takes_cpu_loops(input) ? gated_rows : tensor_ops::gated)(input, gelu);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor input = context->get_saved_variables()[0], grad = contiguous_floats(grads[0]);
    const auto gradient = takes_cpu_loops(grad) ? gated_rows_backward : tensor_ops::gated_backward;
    return {gradient(grad, input, context->saved_data["gelu"].toBool()), {}};
  }
};

/// Rotation by the angles, or back with sign = −1.
at::Tensor rotated(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, float sign) {
  KVQ_ASSERT(x.dim() == 3 && cosine.is_contiguous() && sine.is_contiguous());
  if (!takes_cpu_loops(x)) return tensor_ops::rotated(x, cosine, sine, sign);
  at::Tensor input = x.to(at::kFloat);
  if (input.stride(2) != 1) input = input.contiguous();
  const std::int64_t tokens = input.size(0), heads = input.size(1), width = input.size(2), pairs = cosine.size(1);
  KVQ_ASSERT(2 * pairs <= width && cosine.size(0) == tokens);
  at::Tensor result = empty_floats({tokens, heads, width});
  const float *in = input.const_data_ptr<float>(), *cosines = cosine.const_data_ptr<float>(),
              *sines = sine.const_data_ptr<float>();
  const std::int64_t token_stride = input.stride(0), head_stride = input.stride(1);
  float* out = result.mutable_data_ptr<float>();
  for_rows(tokens, heads * width, [&](std::int64_t token) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const float* from = in + token * token_stride + head * head_stride;
      float* to = out + (token * heads + head) * width;
      vector_math().rotate(from, from + pairs, cosines + token * pairs, sines + token * pairs, sign, pairs, to,
                           to + pairs);
      std::copy(from + 2 * pairs, from + width, to + 2 * pairs);
    }
  });
  return x.scalar_type() == at::kFloat ? result : result.to(x.scalar_type());
}

struct RotatePairs : torch::autograd::Function<RotatePairs> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cosine,
                            const at::Tensor& sine) {
    context->save_for_backward({cosine, sine});
    return rotated(x, cosine, sine, 1.0f);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {rotated(grads[0], saved[0], saved[1], -1.0f), {}, {}};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return RmsNorm::apply(x, weight, eps);
}

at::Tensor gated(Activation activation, const at::Tensor& gate_up) {
  return Gated::apply(gate_up, activation == Activation::GeluTanh);
}

at::Tensor rotate_pairs(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  return RotatePairs::apply(x, cosine, sine);
}

}  // namespace kvq
