#include <kvq/fit/data_view.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <kvq/core/parallel.h>
#include <kvq/fit/rotation.h>
#include <kvq/quant/head_rotation.h>
#include <kvq/stats/quantile.h>

namespace kvq {

namespace {

constexpr std::int64_t kViewTokens = 64;

void clip_gradients(std::span<float> gradients, const TokenSample& sample, double quantile, int threads) {
  const std::vector<double> variances = channel_variances(sample);
  std::vector<float> energy(static_cast<std::size_t>(sample.tokens()));
  parallel_ranges(sample.tokens(), kViewTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const float* g = gradients.data() + token * sample.width;
      double sum = 0;
      for (int channel = 0; channel < sample.width; ++channel)
        sum += static_cast<double>(g[channel]) * g[channel] * variances[static_cast<std::size_t>(channel)];
      energy[static_cast<std::size_t>(token)] = static_cast<float>(std::sqrt(sum));
    }
  });
  std::vector<float> counted;
  for (std::int64_t token = 0; token < sample.tokens(); ++token)
    if (sample.counts(token)) counted.push_back(energy[static_cast<std::size_t>(token)]);
  const float limit = kvq::quantile(counted, quantile);
  parallel_ranges(sample.tokens(), kViewTokens, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      const float a = energy[static_cast<std::size_t>(token)];
      if (!(a > limit)) continue;
      float* g = gradients.data() + token * sample.width;
      for (int channel = 0; channel < sample.width; ++channel) g[channel] *= limit / a;
    }
  });
}

/// Scale of HeadRotation, `[width]`.
std::vector<float> rotation_scale(const TokenSample& sample, int head_dim) {
  const std::vector<double> variances = channel_variances(sample);
  std::vector<float> scale;
  for (std::size_t first = 0; first < variances.size(); first += static_cast<std::size_t>(head_dim)) {
    double mean = 0;
    for (int channel = 0; channel < head_dim; ++channel)
      mean += variances[first + static_cast<std::size_t>(channel)] / head_dim;
    const double head = mean > 0 ? std::sqrt(mean) : 1.0;
    for (int channel = 0; channel < head_dim; ++channel) {
      const double own = std::sqrt(variances[first + static_cast<std::size_t>(channel)]);
      // A channel that hardly varies would be blown up without bound, and its rounding noise with it.
      scale.push_back(static_cast<float>(1.0 / std::sqrt((own > 1e-6 * head ? own : head) * head)));
    }
  }
  return scale;
}

void rotate(const HeadRotation& rotation, std::span<float> x, int width, int threads) {
  parallel_ranges(
      static_cast<std::int64_t>(x.size()) / width, kViewTokens, threads, [&](std::int64_t begin, std::int64_t end) {
        rotation.forward(
            x.subspan(static_cast<std::size_t>(begin * width), static_cast<std::size_t>((end - begin) * width)));
      });
}

}  // namespace

std::vector<double> channel_variances(const TokenSample& sample) {
  const auto width = static_cast<std::size_t>(sample.width);
  const auto count = static_cast<double>(sample.counted_tokens());
  std::vector<double> mean(width), variance(width);
  for (const bool second : {false, true}) {  // two passes: sums of squares would cancel
    for (std::int64_t token = 0; token < sample.tokens(); ++token) {
      if (!sample.counts(token)) continue;
      const float* row = sample.x.data() + token * sample.width;
      for (std::size_t channel = 0; channel < width; ++channel) {
        const double offset = row[channel] - mean[channel];
        variance[channel] += second ? offset * offset : offset;
      }
    }
    for (std::size_t channel = 0; channel < width; ++channel) {
      variance[channel] /= count;
      if (!second) std::swap(mean[channel], variance[channel]), variance[channel] = 0;
    }
  }
  return variance;
}

DataView view_of(const SideRecipe& recipe, int sinks) {
  DataView view{recipe.post_rope, recipe.rotation, recipe.rounding.clip, 0};
  if (view.rotation != Rotation::None || view.clip < 1.0) view.sinks = sinks;
  return view;
}

ViewedData view_data(const DataView& view, const KvShape& shape, const RopeParams& rope, std::int64_t sequences,
                     std::int64_t seqlen, std::span<const float> x, std::span<const float> gradients, int threads) {
  ViewedData result{{x.begin(), x.end()}, {gradients.begin(), gradients.end()}, {}};
  const TokenSample sample{x, shape.width(), sequences, seqlen, view.sinks};
  if (view.clip < 1.0 && !gradients.empty()) clip_gradients(result.gradients, sample, view.clip, threads);
  if (view.post_rope) {
    for (std::vector<float>* tensor : {&result.x, &result.gradients})
      rotate_tokens(*tensor, shape, rope, seqlen, threads);
  }
  if (view.rotation == Rotation::Hadamard) {
    result.rotation_scale = rotation_scale(sample, shape.head_dim);
    std::vector<float> inverse;
    for (const float scale : result.rotation_scale) inverse.push_back(1.0f / scale);
    rotate(HeadRotation(result.rotation_scale, shape.kv_heads, shape.head_dim), result.x, shape.width(), threads);
    rotate(HeadRotation(inverse, shape.kv_heads, shape.head_dim), result.gradients, shape.width(), threads);
  }
  return result;
}

}  // namespace kvq
