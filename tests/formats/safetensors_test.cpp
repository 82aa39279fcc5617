#include <string>
#include <vector>

#include "support/catch.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/formats/safetensors.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const std::string kA = entry("a", "F32", "[2,2]", "[0,16]");

/// 'a' F32 [2, 2] = 1…4, 'b' BF16 [2] = 1, -2, 'c' F16 [1] = 0.5.
std::string small() {
  std::string data;
  for (const float value : {1.0f, 2.0f, 3.0f, 4.0f}) data += bytes_of(value);
  for (const std::uint16_t half : {0x3f80, 0xc000, 0x3800}) data += bytes_of(half);
  return safetensors(R"({"__metadata__":{"format":"pt"},)" + entry("c", "F16", "[1]", "[20,22]") + "," + kA + "," +
                         entry("b", "BF16", "[2]", "[16,20]") + "}  ",
                     data);
}

std::string refusal(const std::filesystem::path& path) {
  try {
    const SafetensorsFile file(path);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Format);
    CHECK_THAT(error.what(), ContainsSubstring(path.string()));
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("A small safetensors file is read") {
  const TempDir folder;
  write_bytes(folder / "m.safetensors", small());
  const SafetensorsFile file(folder / "m.safetensors");
  REQUIRE(file.tensors().size() == 3);
  CHECK(file.tensors().at("a").info.shape == std::vector<std::int64_t>{2, 2});
  std::vector<float> two(2), one(1);
  file.read_rows(file.tensors().at("a"), 1, 1, two);
  CHECK(two == std::vector<float>{3, 4});
  file.read_rows(file.tensors().at("b"), 0, 2, two);
  CHECK(two == std::vector<float>{1, -2});
  file.read_rows(file.tensors().at("c"), 0, 1, one);
  CHECK(one[0] == 0.5f);
}

TEST_CASE("Safetensors without tensors, with empty metadata or with a scalar are in order") {
  const TempDir folder;
  write_bytes(folder / "m.safetensors", safetensors("{}", ""));
  CHECK(SafetensorsFile(folder / "m.safetensors").tensors().empty());
  write_bytes(folder / "m.safetensors", safetensors(R"({"__metadata__":{}})", ""));
  CHECK(SafetensorsFile(folder / "m.safetensors").tensors().empty());
  write_bytes(folder / "m.safetensors", safetensors("{" + entry("s", "F32", "[]", "[0,4]") + "}", bytes_of(2.5f)));
  const SafetensorsFile file(folder / "m.safetensors");
  std::vector<float> one(1);
  file.read_rows(file.tensors().at("s"), 0, 1, one);
  CHECK(one[0] == 2.5f);
}

TEST_CASE("Integer buffers are listed and refused only when they are read as weights") {
  const TempDir folder;
  write_bytes(folder / "m.safetensors",
              safetensors("{" + entry("ids", "I64", "[2]", "[0,16]") + "}", std::string(16, '\0')));
  const SafetensorsFile file(folder / "m.safetensors");
  std::vector<float> two(2);
  CHECK_THROWS_WITH(file.read_rows(file.tensors().at("ids"), 0, 2, two),
                    ContainsSubstring("tensor 'ids' is of type I64"));
}

TEST_CASE("Damaged safetensors files are refused with the reason") {
  const TempDir folder;
  const std::string data16(16, '\0');
  const auto only = [&](const std::string& inside) { return safetensors("{" + inside + "}", data16); };
  const std::pair<std::string, const char*> cases[] = {
      {u64(std::uint64_t{1} << 63) + "{}", "claims 9223372036854775808 bytes; at most 100000000"},
      {u64(100'000'001) + "{}", "claims 100000001 bytes"},
      {u64(3) + "{}", "ends within the header: 3 bytes needed, 2 left"},
      {u64(0), "no JSON object at byte 8"},
      {u64(0) + "{}", "no JSON object at byte 8"},
      {safetensors("[]", ""), "no JSON object at byte 8"},
      {safetensors(" {}", ""), "no JSON object at byte 8"},
      {safetensors("{", ""), "not valid JSON"},
      {safetensors("{}x", ""), "not valid JSON"},
      {safetensors("{\"\xff\":1}", ""), "not valid JSON"},
      {safetensors("{}", "x"), "1 bytes after its last tensor"},
      {only(kA + "," + kA), "key 'a' occurs twice"},
      {safetensors(R"({"__metadata__":{"x":"1","x":"2"}})", ""), "key 'x' occurs twice"},
      {safetensors(R"({"__metadata__":{"x":1}})", ""), "__metadata__ must be an object of strings"},
      {safetensors(R"({"__metadata__":null})", ""), "__metadata__ must be an object of strings"},
      {only(R"("a":1)"), "must have exactly dtype, shape and data_offsets"},
      {only(R"("a":{"dtype":"F32","shape":[4]})"), "must have exactly"},
      {only(R"("a":{"dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1})"), "must have exactly"},
      {only(R"("a":{"dtype":7,"shape":[4],"data_offsets":[0,16]})"), "the dtype of tensor 'a' is not a string"},
      {only(entry("", "F32", "[4]", "[0,16]")), "without a name"},
      {only(entry("a", "F64", "[2]", "[0,16]")), "type 'F64', which is not supported; supported are F32, F16, BF16"},
      {only(entry("a", "F8_E4M3", "[16]", "[0,16]")), "type 'F8_E4M3', which is not supported"},
      {only(entry("a", "f32", "[4]", "[0,16]")), "type 'f32', which is not supported"},
      {only(entry("a", "F32", "4", "[0,16]")), "must be an array of at most 8 sizes"},
      {only(entry("a", "F32", "[1,1,1,1,1,1,1,1,4]", "[0,16]")), "at most 8"},
      {only(entry("a", "F32", "[-4]", "[0,16]")), "dimension of size '-4'"},
      {only(entry("a", "F32", "[4.0]", "[0,16]")), "dimension of size '4.0'"},
      {only(entry("a", "F32", "[\"4\"]", "[0,16]")), "dimension of size"},
      {only(entry("a", "F32", "[0,4]", "[0,0]")), "dimension of size '0'"},
      {only(entry("a", "F32", "[9223372036854775808]", "[0,16]")), "dimension of size"},
      {only(entry("a", "F32", "[4294967296,4294967296]", "[0,16]")), "overflows"},
      {only(entry("a", "F32", "[4611686018427387905]", "[0,4]")), "overflows"},  // times four wraps around to 4
      {only(entry("a", "F32", "[4]", "[16,0]")), "begins at 16 and ends before it"},
      {only(entry("a", "F32", "[4]", "[0,12]")), "takes 12 bytes in the file, but its shape and type need 16"},
      {only(entry("a", "F32", "[4]", "[0]")), "two non-negative integers"},
      {only(entry("a", "F32", "[4]", "[-16,0]")), "two non-negative integers"},
      {only(entry("a", "F32", "[4]", "[0.0,16]")), "two non-negative integers"},
      {only(entry("a", "F32", "[8]", "[0,32]")), "truncated: tensor 'a' ends at byte 32 of the data, of which 16"},
      {only(entry("a", "F32", "[4]", "[18446744073709551599,18446744073709551615]")), "truncated"},
      {only(entry("a", "F32", "[2]", "[8,16]")), "a hole"},
      {only(entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[2]", "[8,16]")),
       "tensor 'b' begins at byte 8"},
      {only(entry("a", "F32", "[3]", "[0,12]") + "," + entry("b", "F32", "[2]", "[8,16]")), "they overlap"},
      {only(kA + "," + entry("b", "F32", "[4]", "[0,16]")), "they overlap"},
      {only(entry("a", "F32", "[3]", "[0,12]")), "4 bytes after its last tensor"},
  };
  for (const auto& [bytes, reason] : cases) {
    write_bytes(folder / "bad.safetensors", bytes);
    CHECK_THAT(refusal(folder / "bad.safetensors"), ContainsSubstring(reason));
  }
}

TEST_CASE("A safetensors file cut at any byte is refused") {
  const TempDir folder;
  const std::string bytes = small();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    write_bytes(folder / "cut.safetensors", std::string_view(bytes).substr(0, length));
    if (refusal(folder / "cut.safetensors") == "accepted") FAIL("accepted when cut to " << length);
  }
}

TEST_CASE("A header of many thousand tensors is read in linear time") {
  const TempDir folder;
  std::string header = "{";
  constexpr int kTensors = 50'000;
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    header +=
        (tensor ? "," : "") + entry("t" + std::to_string(tensor), "BF16", "[1]",
                                    "[" + std::to_string(2 * tensor) + "," + std::to_string(2 * tensor + 2) + "]");
  }
  write_bytes(folder / "m.safetensors", safetensors(header + "}", std::string(2 * kTensors, '\0')));
  CHECK(SafetensorsFile(folder / "m.safetensors").tensors().size() == kTensors);
}
