#include <kvq/quant/codebook.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/catch.h"

using namespace kvq;

TEST_CASE("NormalFloat with 4 bits is the published table") {
  // Dettmers et al., QLoRA (arXiv 2305.14314), appendix E.
  const std::vector<double> published = {-1.0,
                                         -0.6961928009986877,
                                         -0.5250730514526367,
                                         -0.39491748809814453,
                                         -0.28444138169288635,
                                         -0.18477343022823334,
                                         -0.09105003625154495,
                                         0.0,
                                         0.07958029955625534,
                                         0.16093020141124725,
                                         0.24611230194568634,
                                         0.33791524171829224,
                                         0.44070982933044434,
                                         0.5626170039176941,
                                         0.7229568362236023,
                                         1.0};
  const Codebook codebook = normal_float_codebook(4);
  REQUIRE(codebook.levels() == 16);
  for (std::size_t level = 0; level < 16; ++level) CHECK(std::abs(codebook.centroids[level] - published[level]) < 1e-6);
}

TEST_CASE("NormalFloat has zero and both ends at every width") {
  for (int bits = 2; bits <= 8; ++bits) {
    const Codebook codebook = normal_float_codebook(bits);
    REQUIRE(codebook.levels() == 1 << bits);
    CHECK(codebook.centroids.front() == -1.0f);
    CHECK(codebook.centroids.back() == 1.0f);
    CHECK(codebook.centroids[(1 << (bits - 1)) - 1] == 0.0f);
    CHECK(std::is_sorted(codebook.centroids.begin(), codebook.centroids.end()));
    CHECK(std::adjacent_find(codebook.centroids.begin(), codebook.centroids.end()) == codebook.centroids.end());
    CHECK(codebook.decoded == codebook.centroids);
  }
  CHECK(normal_float_codebook(1).centroids == std::vector<float>{-0.5f, 0.5f});
}

TEST_CASE("Uniform codebooks are equally spaced from end to end") {
  CHECK(uniform_codebook(1).centroids == std::vector<float>{-0.5f, 0.5f});
  for (int bits = 2; bits <= 8; ++bits) {
    const Codebook codebook = uniform_codebook(bits);
    REQUIRE(codebook.levels() == 1 << bits);
    const int last = codebook.levels() - 1;
    for (int level = 0; level <= last; ++level) {
      CHECK(codebook.centroids[level] == Approx(-1.0 + 2.0 * level / last).margin(1e-7));
      CHECK(codebook.centroids[level] == -codebook.centroids[last - level]);
    }
  }
}

TEST_CASE("Boundaries are the midpoints of what decides, not of what is decoded") {
  const Codebook codebook{{-1.0f, 0.0f, 0.5f, 1.0f}, {-0.9f, 0.1f, 0.6f, 1.1f}};
  CHECK(codebook.boundaries() == std::vector<float>{-0.5f, 0.25f, 0.75f});
  CHECK(uniform_codebook(1).boundaries() == std::vector<float>{0.0f});
}
