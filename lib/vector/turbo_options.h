#pragma once
// What turbo_codec.h leaves to choose, bits aside.

#include <cstdint>

#include <kvq/vector/sphere_codebook.h>

namespace kvq {

/// Which length is stored with the codes.
enum class NormRule {
  Exact,     ///< ‖x‖ (the paper)
  Fit,       ///< the one that makes ‖x - x̂‖ least
  Unbiased,  ///< the one with <x, x̂> = ‖x‖²: levels are means of cells and therefore too short
};

struct TurboOptions {
  bool hadamard = false;  ///< rotation
  Marginal marginal = Marginal::Sphere;
  bool qjl = false;  ///< one of the bits sketches the residual (sign_sketch.h)
  NormRule norm = NormRule::Exact;
  int outlier_channels = 0;  ///< channels of a row that are coded apart, with `outlier_bits`
  int outlier_bits = 0;
  int seed = 0;  ///< of rotations and sketches
  bool operator==(const TurboOptions&) const = default;
};

}  // namespace kvq
