#include <kvq/fit/rotation.h>

#include <cmath>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

void rotate_tokens(std::span<float> x, const KvShape& shape, const RopeParams& rope, std::int64_t seqlen, int threads) {
  const int half = rope.rotary_dim / 2;
  KVQ_ASSERT(rope.rotary_dim <= shape.head_dim);
  const std::vector<double> frequencies = rope.inverse_frequencies();
  const auto tokens = static_cast<std::int64_t>(x.size()) / shape.width();
  // One position at a time, so that its sines serve every sequence and head.
  parallel_for(std::min(seqlen, tokens), threads, [&](std::int64_t position) {
    std::vector<double> cosines(half), sines(half);
    for (int pair = 0; pair < half; ++pair) {
      const double angle = static_cast<double>(position) * frequencies[pair];
      cosines[pair] = std::cos(angle);
      sines[pair] = std::sin(angle);
    }
    for (std::int64_t token = position; token < tokens; token += seqlen) {
      for (int kv_head = 0; kv_head < shape.kv_heads; ++kv_head) {
        float* first = x.data() + token * shape.width() + static_cast<std::int64_t>(kv_head) * shape.head_dim;
        float* second = first + half;
        for (int pair = 0; pair < half; ++pair) {
          const double a = first[pair], b = second[pair];
          first[pair] = static_cast<float>(a * cosines[pair] - b * sines[pair]);
          second[pair] = static_cast<float>(b * cosines[pair] + a * sines[pair]);
        }
      }
    }
  });
}

}  // namespace kvq
