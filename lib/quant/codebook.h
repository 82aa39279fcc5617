#pragma once
// Codebooks on the normalised axis [-1, 1].

#include <cstdint>
#include <span>
#include <vector>

namespace kvq {

struct Codebook {
  std::vector<float> centroids;  ///< 2^bits or code_levels(), ascending; codes are chosen by distance to these
  std::vector<float> decoded;    ///< what a code stands for; differs from `centroids` only with Q-Norm

  int levels() const { return static_cast<int>(centroids.size()); }
  /// Midpoints between neighbouring centroids, `[levels - 1]`; a value equal to a midpoint belongs to the lower code.
  std::vector<float> boundaries() const;
};

Codebook uniform_levels(int levels);  ///< evenly from -1 to 1; 1: 0; 2: -0.5, 0.5
Codebook uniform_codebook(int bits);  ///< 2^bits levels from -1 to 1; 1 bit: -0.5, 0.5
/// QLoRA's construction for 4 bits, the same for others; contains 0 and both ends exactly for bits >= 2, 1 bit as
/// uniform.
Codebook normal_float_codebook(int bits);

}  // namespace kvq
