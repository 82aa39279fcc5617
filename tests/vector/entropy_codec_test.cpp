// Entropy-coded pages: the same values as without, fewer bytes, pages by themselves, damage.

#include <cmath>

#include <kvq/coding/entropy.h>
#include <kvq/vector/entropy_codec.h>
#include <kvq/vector/scalar_codec_fit.h>

#include "coding/streams.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

namespace {

EntropyCodec trained(EntropyCoder coder, std::shared_ptr<const ScalarCodec> scalar, std::span<const float> x,
                     int page) {
  return EntropyCodec(scalar, train_entropy_table(*scalar, coder, x), page);
}

}  // namespace

TEST_CASE("Entropy-coded rows hold the same values in fewer bytes, near the entropy of their codes") {
  constexpr int kDim = 128, kRows = 1000;
  const auto x = gaussian(kRows * kDim, 1);
  // J. Max, Quantizing for minimum distortion, table I, 16 levels of a normal distribution; their entropy is 3.765
  // there.
  std::vector<float> levels;
  for (const double level : {-2.733, -2.069, -1.618, -1.256, -0.9424, -0.6568, -0.3881, -0.1284, 0.1284, 0.3881, 0.6568,
                             0.9424, 1.256, 1.618, 2.069, 2.733})
    levels.push_back(static_cast<float>(level / std::sqrt(static_cast<double>(kDim))));
  auto scalar = std::make_shared<ScalarCodec>(kDim, RowScale::Norm, levels);
  std::array<std::uint64_t, 256> counts{};
  std::vector<std::uint8_t> codes(kDim);
  for (std::size_t row = 0; row < kRows; ++row) {
    scalar->quantize(std::span<const float>(x).subspan(row * kDim, kDim), 0, codes);
    for (const auto code : codes) ++counts[code];
  }
  const double entropy = shannon_bits(counts);
  CHECK(entropy == Approx(3.765).margin(0.01));
  for (const auto& [coder, excess] : {std::pair{EntropyCoder::Huffman, 0.06}, std::pair{EntropyCoder::Rans, 0.02}}) {
    const EntropyCodec codec = trained(coder, scalar, x, 128);
    CHECK(codec.block_rows() == 128);
    const auto bytes = encoded(codec, x);
    CHECK(decoded(codec, bytes, x.size()) == restored(*scalar, x));
    const double bits = (8.0 * static_cast<double>(bytes.size()) - 16.0 * kRows) / static_cast<double>(x.size());
    INFO(bits << " bits per code, entropy " << entropy);
    CHECK(bits > entropy);
    CHECK(bits < entropy + excess);
  }
}

TEST_CASE("A page that the table does not suit is packed instead: a byte more than without entropy coding at most") {
  constexpr int kDim = 64;
  const auto x = gaussian(400 * kDim, 2);
  auto scalar = std::make_shared<ScalarCodec>(kDim, RowScale::Max, fit_scalar_levels(x, kDim, RowScale::Max, 3));
  std::vector<float> ends(20 * kDim);
  for (std::size_t at = 0; at < ends.size(); ++at) ends[at] = at % 2 == 0 ? 1.0f : -1.0f;  // the rarest levels only
  for (const EntropyCoder coder : {EntropyCoder::Huffman, EntropyCoder::Rans}) {
    const EntropyCodec codec = trained(coder, scalar, x, 20);
    const auto bytes = encoded(codec, ends);
    CHECK(bytes.size() == 20 * scalar->row_bytes() + 1);
    CHECK(decoded(codec, bytes, ends.size()) == restored(*scalar, ends));
    const std::vector<float> none;
    CHECK(encoded(codec, none).empty());
  }
}

TEST_CASE("Pages can be read without the others, the last one short") {
  constexpr int kDim = 16;
  const auto x = gaussian(70 * kDim, 3);
  auto scalar = std::make_shared<ScalarCodec>(kDim, RowScale::Norm, fit_scalar_levels(x, kDim, RowScale::Norm, 4));
  for (const EntropyCoder coder : {EntropyCoder::Huffman, EntropyCoder::Rans}) {
    const EntropyCodec codec = trained(coder, scalar, x, 32);
    std::vector<std::byte> parts;
    for (const std::size_t first : {0u, 32u, 64u}) {
      const auto values = std::span<const float>(x).subspan(first * kDim, std::min<std::size_t>(32, 70 - first) * kDim);
      const auto bytes = encoded(codec, values);
      CHECK(decoded(codec, bytes, values.size()) == restored(*scalar, values));
      parts.insert(parts.end(), bytes.begin(), bytes.end());
    }
    CHECK((encoded(codec, x) == parts));
  }
}

TEST_CASE("Damaged pages are refused or decode to finite values") {
  constexpr int kDim = 12;
  const auto x = gaussian(15 * kDim, 4);
  auto scalar = std::make_shared<ScalarCodec>(kDim, RowScale::Norm, fit_scalar_levels(x, kDim, RowScale::Norm, 3));
  for (const EntropyCoder coder : {EntropyCoder::Huffman, EntropyCoder::Rans}) {
    const EntropyCodec codec = trained(coder, scalar, x, 8);
    const auto bytes = encoded(codec, x);
    std::vector<float> out(x.size());
    const int refused = damage_everywhere(bytes, [&](auto damaged) {
      codec.decode(damaged, out);
      for (const float value : out) REQUIRE(std::isfinite(value));
    });
    CHECK(refused >= static_cast<int>(bytes.size()));
  }
}

TEST_CASE("A table that has no code for a level is refused") {
  auto scalar = std::make_shared<ScalarCodec>(4, RowScale::Norm, std::vector<float>{-0.5f, 0.0f, 0.5f});
  CHECK_THROWS_AS(EntropyCodec(scalar, CanonicalHuffman({1, 1, 0}), 4), Error);
  CHECK_THROWS_AS(EntropyCodec(scalar, RansCoder({2048, 2048}), 4), Error);
}
