#include <kvq/core/kv_shape.h>

#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

std::vector<double> RopeParams::inverse_frequencies() const {
  std::vector<double> result(rotary_dim / 2);
  for (int pair = 0; pair < rotary_dim / 2; ++pair) result[pair] = std::pow(theta, -2.0 * pair / rotary_dim);
  if (kind == "default") return result;
  if (kind == "linear") {
    for (double& frequency : result) frequency /= factor;
    return result;
  }
  if (kind == "llama3") {
    // Llama 3.1: slow pairs are stretched by `factor`, fast ones stay, between them a linear blend over the wavelength.
    for (double& frequency : result) {
      const double wavelength = 2.0 * std::numbers::pi / frequency;
      const double turns = original_context / wavelength;
      if (turns < low_freq_factor) {
        frequency /= factor;
      } else if (turns <= high_freq_factor) {
        const double blend = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
        frequency = (1.0 - blend) * frequency / factor + blend * frequency;
      }
    }
    return result;
  }
  fail(ErrorKind::Input, fmt::format("RoPE kind '{}' is not supported; known: default, linear, llama3", kind));
}

}  // namespace kvq
