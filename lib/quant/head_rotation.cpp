#include <kvq/quant/head_rotation.h>

#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

int hadamard_block(int head_dim) { return head_dim & -head_dim; }

HeadRotation::HeadRotation(std::span<const float> scale, int kv_heads, int head_dim)
    : width_(kv_heads * head_dim), block_(hadamard_block(head_dim)) {
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

void HeadRotation::mix(float* row) const {
  for (int step = 1; step < block_; step *= 2) {
    for (int first = 0; first < width_; first += 2 * step) {
      float *a = row + first, *b = a + step;
      for (int channel = 0; channel < step; ++channel) {
        const float sum = a[channel] + b[channel], difference = a[channel] - b[channel];
        a[channel] = sum;
        b[channel] = difference;
      }
    }
  }
}

void HeadRotation::forward(std::span<float> x) const {
  for (std::size_t token = 0; token < x.size(); token += static_cast<std::size_t>(width_)) {
    float* row = x.data() + token;
    for (int channel = 0; channel < width_; ++channel) row[channel] *= forward_[static_cast<std::size_t>(channel)];
    mix(row);
  }
}

void HeadRotation::inverse(std::span<float> x) const {
  for (std::size_t token = 0; token < x.size(); token += static_cast<std::size_t>(width_)) {
    float* row = x.data() + token;
    mix(row);
    for (int channel = 0; channel < width_; ++channel) row[channel] *= inverse_[static_cast<std::size_t>(channel)];
  }
}

}  // namespace kvq
