#include <kvq/quant/head_rotation.h>

#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

HeadRotation::HeadRotation(std::span<const float> scale, int kv_heads, int head_dim)
    : loops_(&orthogonal_loops()), width_(kv_heads * head_dim), block_(hadamard_block(head_dim)) {
  if (scale.size() != static_cast<std::size_t>(width_)) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has {} scales of a rotation for {} channels", scale.size(), width_));
  }
  const float norm = 1.0f / std::sqrt(static_cast<float>(block_));
  for (const float factor : scale) {
    if (!(factor > 0.0f) || !std::isfinite(1.0f / factor) || !std::isfinite(factor))
      fail(ErrorKind::Mismatch, fmt::format("quantizer has a scale of {} in a rotation; it must be positive", factor));
    forward_.push_back(factor * norm);
    inverse_.push_back(1.0f / factor * norm);
  }
}

void HeadRotation::forward(std::span<float> x) const {
  for (std::size_t token = 0; token < x.size(); token += static_cast<std::size_t>(width_)) {
    float* row = x.data() + token;
    for (int channel = 0; channel < width_; ++channel) row[channel] *= forward_[static_cast<std::size_t>(channel)];
    loops_->mix_blocks(row, width_, block_);
  }
}

void HeadRotation::inverse(std::span<float> x) const {
  for (std::size_t token = 0; token < x.size(); token += static_cast<std::size_t>(width_)) {
    float* row = x.data() + token;
    loops_->mix_blocks(row, width_, block_);
    for (int channel = 0; channel < width_; ++channel) row[channel] *= inverse_[static_cast<std::size_t>(channel)];
  }
}

}  // namespace kvq
