// compress and decompress: bytes that stand by themselves, every damage seen, honest counts.

#include <cmath>

#include <kvq/core/hash.h>
#include <kvq/vector/compress.h>
#include <kvq/vector/vector_recipe.h>

#include "coding/streams.h"
#include "vector/formula_matrix.h"

using namespace kvq;
using namespace kvq::test;

namespace {

const std::vector<std::string> kRecipes = {"scalar3",
                                           "scalar4:entropy=rans",
                                           "scalar4:entropy=huffman,page=50",
                                           "scalar6:levels=even,entropy=rans",
                                           "delta3:anchor=16,threshold=0.5,abits=5",
                                           "scalar2:lowrank=4,page=64",
                                           "pq:m=8,bits=6",
                                           "pq:m=8,bits=4,norm,lowrank=2"};

CompressedTensor reopened(const CompressedTensor& tensor) {
  return CompressedTensor(std::vector<std::byte>(tensor.bytes().begin(), tensor.bytes().end()));
}

}  // namespace

TEST_CASE("What was compressed comes back from its bytes alone, all of it or some rows") {
  constexpr int kRows = 421, kDim = 16;
  const auto x = correlated(kRows, kDim, 0.9, 1);
  double energy = 0;
  for (const float value : x) energy += static_cast<double>(value) * static_cast<double>(value);
  for (const std::string& recipe : kRecipes) {
    INFO(recipe);
    const CompressedTensor tensor = reopened(compress(x, kRows, kDim, recipe));
    CHECK(tensor.rows() == kRows);
    CHECK(tensor.dim() == kDim);
    CHECK(tensor.recipe() == short_form(parse_vector_recipe(recipe)));
    const auto found = decompress(tensor);
    REQUIRE(found.size() == x.size());
    CHECK(squared_error(x, found) < 0.2 * energy);
    for (const auto& [first, count] :
         {std::pair{0, 1}, std::pair{127, 2}, std::pair{100, 300}, std::pair{420, 1}, std::pair{421, 0}}) {
      const auto some = decompress_rows(tensor, first, count);
      CHECK(std::equal(some.begin(), some.end(), found.begin() + first * kDim, found.begin() + (first + count) * kDim));
    }
    CHECK_THROWS_AS(decompress_rows(tensor, 400, 22), Error);
    CHECK_THROWS_AS(decompress_rows(tensor, -1, 2), Error);
  }
}

TEST_CASE("Bits per value count every byte") {
  constexpr int kRows = 1000, kDim = 64;
  const auto x = gaussian(kRows * kDim, 2);
  const CompressedTensor tensor = compress(x, kRows, kDim, "scalar3");
  CHECK(tensor.bits_per_value() == 8.0 * static_cast<double>(tensor.bytes().size()) / (kRows * kDim));
  CHECK(tensor.payload_bits_per_value() == 3.25);  // 16 bits of scale on 64 values
  // magic, version, rows, dim, recipe, exponent and 8 levels, index, checksum
  CHECK(tensor.bytes().size() == kRows * 26 + 4 + 4 + 8 + 4 + 4 + 7 + 8 + 2 + 8 * 4 + 17 + 32);
}

TEST_CASE("The same bytes come out for any number of threads") {
  const auto x = correlated(3000, 8, 0.9, 3);
  for (const std::string& recipe : kRecipes) {
    INFO(recipe);
    const CompressedTensor one = compress(x, 3000, 8, recipe, 1), four = compress(x, 3000, 8, recipe, 4);
    CHECK(std::equal(one.bytes().begin(), one.bytes().end(), four.bytes().begin(), four.bytes().end()));
  }
}

TEST_CASE("No damaged byte and no truncation goes unseen") {
  const auto x = gaussian(20 * 8, 4);
  for (const char* recipe : {"scalar2", "scalar3:entropy=rans,page=8", "scalar3:entropy=huffman", "delta2:anchor=8"}) {
    const CompressedTensor tensor = compress(x, 20, 8, recipe);
    const std::vector<std::byte> bytes(tensor.bytes().begin(), tensor.bytes().end());
    const int refused = damage_everywhere(
        bytes, [](auto damaged) { CompressedTensor(std::vector<std::byte>(damaged.begin(), damaged.end())); });
    CHECK(refused == 9 * static_cast<int>(bytes.size()));
    std::vector<std::byte> longer(bytes);
    longer.push_back(std::byte{0});
    CHECK_THROWS_AS(CompressedTensor(longer), Error);
  }
}

TEST_CASE("Damage under a right checksum is refused as well, or decodes to finite values") {
  const auto x = gaussian(20 * 8, 5);
  for (const char* recipe : {"scalar2", "scalar3:entropy=rans,page=8", "scalar3:entropy=huffman,page=8",
                             "pq:m=4,bits=2", "delta2:anchor=8", "scalar1:lowrank=2,page=8"}) {
    INFO(recipe);
    const CompressedTensor tensor = compress(x, 20, 8, recipe);
    const auto content = tensor.bytes().first(tensor.bytes().size() - 32);
    const std::vector<std::byte> bytes(content.begin(), content.end());
    damage_everywhere(bytes, [](auto damaged) {
      Sha256 sha;
      sha.update(damaged);
      const std::string hex = sha.finish();
      std::vector<std::byte> all(damaged.begin(), damaged.end());
      for (std::size_t at = 0; at < 64; at += 2)
        all.push_back(static_cast<std::byte>(std::stoi(hex.substr(at, 2), nullptr, 16)));
      const CompressedTensor opened(std::move(all));
      for (const float value : decompress(opened)) REQUIRE_FALSE(std::isnan(value));
    });
  }
}

TEST_CASE("Degenerate tensors are defined") {
  for (const std::string& recipe : kRecipes) {
    INFO(recipe);
    const CompressedTensor none = reopened(compress({}, 0, 16, recipe));
    CHECK(none.rows() == 0);
    CHECK(none.bits_per_value() == 0);
    CHECK(decompress(none).empty());
    const std::vector<float> zeros(16 * 5, 0.0f);
    CHECK(decompress(compress(zeros, 5, 16, recipe)) == zeros);
    const std::vector<float> constant(16 * 5, -2.0f);
    for (const float value : decompress(compress(constant, 5, 16, recipe))) CHECK(value == Approx(-2.0f).epsilon(0.01));
    const std::vector<float> one = gaussian(16, 6);
    CHECK(decompress(compress(one, 1, 16, recipe)).size() == 16);
  }
}

TEST_CASE("What cannot be compressed is refused with the reason") {
  auto x = gaussian(4 * 8, 7);
  CHECK_THROWS_WITH(compress(x, 3, 8, "scalar3"), ContainsSubstring("32 values for 3 rows of 8 channels"));
  CHECK_THROWS_WITH(compress(x, 4, 8, "turbid"), ContainsSubstring("unknown method"));
  CHECK_THROWS_WITH(compress(x, 4, 8, "pq:m=3"), ContainsSubstring("3 subspaces"));
  CHECK_THROWS_WITH(compress({}, 0, 0, "scalar3"), ContainsSubstring("0 channels"));
  x[2 * 8 + 5] = NAN;
  CHECK_THROWS_WITH(compress(x, 4, 8, "scalar3"), ContainsSubstring("row 2, channel 5"));
  x[2 * 8 + 5] = -INFINITY;
  CHECK_THROWS_WITH(compress(x, 4, 8, "pq:m=4"), ContainsSubstring("row 2, channel 5"));
}
