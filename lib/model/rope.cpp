#include <kvq/model/rope.h>

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>

#include <kvq/model/elementwise.h>

namespace kvq {

RopeTable::RopeTable(const RopeParams& params) : params_(params) {}

void RopeTable::grow(std::int64_t positions) {
  if (positions <= positions_) return;
  const c10::InferenceMode ordinary_tensors(
      false);  // autograd must accept the tables later, whatever the caller's mode
  positions = std::max<std::int64_t>(positions, std::min<std::int64_t>(2 * positions_, positions + 8192));
  const std::vector<double> frequencies = params_.inverse_frequencies();
  const std::int64_t pairs = params_.rotary_dim / 2;
  host_ = {at::empty({positions, pairs}, at::TensorOptions().dtype(at::kFloat)),
           at::empty({positions, pairs}, at::TensorOptions().dtype(at::kFloat))};
  elsewhere_ = {};
  float* cosine = host_.cosine.mutable_data_ptr<float>();
  float* sine = host_.sine.mutable_data_ptr<float>();
  for (std::int64_t position = 0; position < positions; ++position) {
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      const double angle = static_cast<double>(position) * frequencies[pair];
      cosine[position * pairs + pair] = static_cast<float>(std::cos(angle));
      sine[position * pairs + pair] = static_cast<float>(std::sin(angle));
    }
  }
  positions_ = positions;
}

const RopeTable::Angles& RopeTable::angles_beside(const at::Tensor& x) {
  if (x.is_cpu()) return host_;
  if (!elsewhere_.cosine.defined() || elsewhere_.cosine.device() != x.device()) {
    const c10::InferenceMode ordinary_tensors(false);
    elsewhere_ = {host_.cosine.to(x.device()), host_.sine.to(x.device())};
  }
  return elsewhere_;
}

at::Tensor RopeTable::apply(const at::Tensor& x, std::int64_t first_position) {
  const std::int64_t tokens = x.size(0);
  grow(first_position + tokens);
  const Angles& angles = angles_beside(x);
  return rotate_pairs(x, angles.cosine.narrow(0, first_position, tokens),
                      angles.sine.narrow(0, first_position, tokens));
}

}  // namespace kvq
