// Fixtures: tests/golden/dequant, random blocks and what the gguf Python package (numpy) makes of them; see
// scripts/reference/make_tiny.py.
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/catch.h"

#include <kvq/formats/dequantize.h>

using namespace kvq;

namespace {

std::vector<std::byte> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

}  // namespace

TEST_CASE("Every supported ggml type decodes to the bits that the gguf package gives") {
  const std::string folder = std::string(KVQ_SOURCE_DIR) + "/tests/golden/dequant/";
  std::ifstream index(folder + "index.json");
  REQUIRE(index);
  const auto entries = nlohmann::json::parse(index);
  REQUIRE(entries.size() == 14);
  for (const auto& entry : entries) {
    const auto name = entry.at("type").get<std::string>();
    INFO("type " << name);
    const auto number = entry.at("ggml_type").get<std::uint32_t>();
    const GgmlTypeTraits* traits = ggml_type_traits(number);
    REQUIRE(traits != nullptr);
    CHECK(traits->name == name);
    CHECK(traits->block_values == entry.at("block_values").get<std::int64_t>());
    CHECK(traits->block_bytes == entry.at("block_bytes").get<std::int64_t>());
    const auto bytes = read_bytes(folder + name + ".bin");
    const auto expected_bytes = read_bytes(folder + name + ".f32");
    std::vector<std::uint32_t> expected(expected_bytes.size() / 4);
    std::memcpy(expected.data(), expected_bytes.data(), expected_bytes.size());

    std::vector<float> values(expected.size());
    dequantize(static_cast<GgmlType>(number), bytes, values);
    std::vector<std::uint32_t> bits(values.size());
    std::memcpy(bits.data(), values.data(), values.size() * 4);
    std::size_t different = 0;
    for (std::size_t index_of = 0; index_of < bits.size(); ++index_of)
      different += bits[index_of] != expected[index_of];
    CHECK(different == 0);
  }
}

TEST_CASE("Types without a decoder have no traits") {
  for (const std::uint32_t type : {4u, 5u, 9u, 15u, 16u, 24u, 28u, 31u, 39u, 1000u, 0xffffffffu}) {
    CHECK(ggml_type_traits(type) == nullptr);
  }
}

TEST_CASE("dequantize insists on whole blocks") {
  std::vector<std::byte> bytes(20);
  std::vector<float> out(32);
  CHECK_THROWS_AS(dequantize(GgmlType::Q4_1, std::span(bytes).first(19), out), std::logic_error);
  CHECK_THROWS_AS(dequantize(GgmlType::Q4_1, bytes, std::span(out).first(31)), std::logic_error);
  CHECK_NOTHROW(dequantize(GgmlType::Q4_1, bytes, out));
}
