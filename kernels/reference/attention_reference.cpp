#include <kvq/kernels/reference/attention_reference.h>

#include <algorithm>
#include <cmath>

namespace kvq::reference {

void rotate(std::span<double> x, const Rope& rope, double position) {
  const std::size_t pairs = rope.inverse_frequencies.size();
  for (std::size_t pair = 0; pair < pairs; ++pair) {
    const double angle = position * rope.inverse_frequencies[pair];
    const double first = x[pair], second = x[pair + pairs];
    x[pair] = first * std::cos(angle) - second * std::sin(angle);
    x[pair + pairs] = second * std::cos(angle) + first * std::sin(angle);
  }
}

std::vector<double> attention(const Heads& shape, std::span<const double> query, std::int64_t first_position,
                              std::span<const double> keys, std::span<const double> values, const Rope& rope) {
  const auto head_dim = static_cast<std::size_t>(shape.head_dim);
  const auto heads = static_cast<std::size_t>(shape.heads), kv_heads = static_cast<std::size_t>(shape.kv_heads);
  std::vector<double> rotated(keys.begin(), keys.end());
  for (std::size_t row = 0; row * head_dim < rotated.size() && !rope.keys_are_rotated; ++row) {
    rotate(std::span(rotated).subspan(row * head_dim, head_dim), rope, static_cast<double>(row / kv_heads));
  }
  std::vector<double> result(query.size());
  for (std::size_t row = 0; row * head_dim < query.size(); ++row) {
    const auto position = first_position + static_cast<std::int64_t>(row / heads);
    const std::size_t kv_head = row % heads / (heads / kv_heads), seen = static_cast<std::size_t>(position) + 1;
    std::vector<double> q(query.begin() + row * head_dim, query.begin() + (row + 1) * head_dim);
    rotate(q, rope, static_cast<double>(position));
    std::vector<double> weights(seen);
    for (std::size_t token = 0; token < seen; ++token) {
      const double* key = rotated.data() + (token * kv_heads + kv_head) * head_dim;
      for (std::size_t channel = 0; channel < head_dim; ++channel) weights[token] += q[channel] * key[channel];
      weights[token] /= std::sqrt(static_cast<double>(head_dim));
    }
    const double largest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (std::size_t token = 0; token < seen; ++token) {
      const double* value = values.data() + (token * kv_heads + kv_head) * head_dim;
      for (std::size_t channel = 0; channel < head_dim; ++channel) {
        result[row * head_dim + channel] += weights[token] / total * value[channel];
      }
    }
  }
  return result;
}

std::vector<double> decode_attention(const Heads& shape, std::span<const double> query, std::span<const double> keys,
                                     std::span<const double> values, const Rope& rope) {
  const std::int64_t tokens = static_cast<std::int64_t>(keys.size()) / (shape.kv_heads * shape.head_dim);
  return attention(shape, query, tokens - 1, keys, values, rope);
}

}  // namespace kvq::reference
