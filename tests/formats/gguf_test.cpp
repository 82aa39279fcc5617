#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/gguf_builder.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/formats/gguf.h>

using namespace kvq;
using namespace kvq::test;

namespace {

enum : std::uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };

/// Two tensors: 'a' F32 [2, 3] = 0…5, 'b' Q4_1 [32] with scale 0.5, minimum -1, code i mod 16.
GgufParts small() {
  GgufParts parts;
  parts.pairs = {
      gguf_pair("general.architecture", kString, gguf_string("llama")), gguf_pair("llama.block_count", kU32, u32(7)),
      gguf_pair("tokens", kArray, gguf_array(kString, 3, gguf_string("one") + gguf_string("") + gguf_string("3")))};
  std::string floats;
  for (int value = 0; value < 6; ++value) floats += bytes_of(static_cast<float>(value));
  std::string block = bytes_of<std::uint16_t>(0x3800) + bytes_of<std::uint16_t>(0xbc00);
  for (int code = 0; code < 16; ++code) block += static_cast<char>(code | code << 4);
  parts.tensors = {{"a", {3, 2}, 0, 0, floats}, {"b", {32}, 3, 32, block}};
  return parts;
}

std::string refusal(const std::filesystem::path& path) {
  try {
    const GgufFile file(path);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Format);
    const std::string message = error.what();
    CHECK_THAT(message, ContainsSubstring(path.string()));
    return message;
  }
  return "accepted";
}

}  // namespace

TEST_CASE("A small GGUF file is read: metadata, shapes outermost first, rows") {
  const TempDir folder;
  for (const std::uint32_t version : {2u, 3u}) {
    GgufParts parts = small();
    parts.version = version;
    write_bytes(folder / "m.gguf", parts.build());
    const GgufFile file(folder / "m.gguf");
    CHECK(file.require_string("general.architecture") == "llama");
    CHECK(file.require_int("llama.block_count") == 7);
    CHECK(*file.find_strings("tokens") == std::vector<std::string>{"one", "", "3"});
    CHECK(file.names() == std::vector<std::string>{"a", "b"});
    CHECK(file.find("a")->shape == std::vector<std::int64_t>{2, 3});
    CHECK(file.find("b")->dtype == "Q4_1");
    CHECK(file.find("c") == nullptr);
    std::vector<float> row(3);
    file.read_rows("a", 1, 1, row);
    CHECK(row == std::vector<float>{3, 4, 5});
    std::vector<float> part(5);  // a 1-D tensor's rows are single values, also across the middle of a block
    file.read_rows("b", 14, 5, part);
    CHECK(part == std::vector<float>{6, 6.5, -1, -0.5, 0});
    file.release("a");
    file.read_rows("a", 0, 1, row);
    CHECK(row == std::vector<float>{0, 1, 2});
    CHECK_THROWS_AS(file.read_rows("a", 2, 1, row), std::logic_error);
    CHECK_THROWS_AS(file.read_rows("a", 0, 2, row), std::logic_error);
    CHECK_THROWS_AS(file.read_rows("c", 0, 1, row), Error);
  }
}

TEST_CASE("GGUF values of every type are widened, typed access refuses other types") {
  const TempDir folder;
  GgufParts parts;
  parts.pairs = {gguf_pair("u8", kU8, bytes_of<std::uint8_t>(200)),
                 gguf_pair("i8", kI8, bytes_of<std::int8_t>(-100)),
                 gguf_pair("u16", kU16, bytes_of<std::uint16_t>(60000)),
                 gguf_pair("i16", kI16, bytes_of<std::int16_t>(-30000)),
                 gguf_pair("u32", kU32, u32(4000000000u)),
                 gguf_pair("i32", kI32, bytes_of<std::int32_t>(-2000000000)),
                 gguf_pair("u64", kU64, u64(1)),
                 gguf_pair("huge", kU64, u64(std::uint64_t{1} << 63)),
                 gguf_pair("i64", kI64, bytes_of<std::int64_t>(-5000000000)),
                 gguf_pair("f32", kF32, bytes_of(0.25f)),
                 gguf_pair("f64", kF64, bytes_of(1e300)),
                 gguf_pair("yes", kBool, std::string(1, '\1')),
                 gguf_pair("text", kString, gguf_string("ü")),
                 gguf_pair("ints", kArray, gguf_array(kI8, 3, "\x01\xff\x7f")),
                 gguf_pair("longs", kArray, gguf_array(kU64, 1, u64(9))),
                 gguf_pair("bools", kArray, gguf_array(kBool, 2, std::string("\0\1", 2))),
                 gguf_pair("floats", kArray, gguf_array(kF32, 2, bytes_of(1.5f) + bytes_of(-2.0f))),
                 gguf_pair("none", kArray, gguf_array(kString, 0, ""))};
  write_bytes(folder / "m.gguf", parts.build());
  const GgufFile file(folder / "m.gguf");
  CHECK(file.require_int("u8") == 200);
  CHECK(file.require_int("i8") == -100);
  CHECK(file.require_int("u16") == 60000);
  CHECK(file.require_int("i16") == -30000);
  CHECK(file.require_int("u32") == 4000000000);
  CHECK(file.require_int("i32") == -2000000000);
  CHECK(file.require_int("u64") == 1);
  CHECK(file.require_int("i64") == -5000000000);
  CHECK(file.find_double("f32") == 0.25);
  CHECK(file.find_double("f64") == 1e300);
  CHECK(file.find_double("u8") == 200.0);
  CHECK(file.find_double("u64") == 1.0);
  CHECK(file.find_bool("yes") == true);
  CHECK(file.find_string("text") == "ü");
  CHECK(*file.find_ints("ints") == std::vector<std::int64_t>{1, -1, 127});
  CHECK(*file.find_ints("longs") == std::vector<std::int64_t>{9});
  CHECK(*file.find_ints("bools") == std::vector<std::int64_t>{0, 1});
  CHECK(*file.find_doubles("floats") == std::vector<double>{1.5, -2});
  CHECK(file.find_strings("none")->empty());
  CHECK(file.names().empty());

  CHECK_FALSE(file.find_int("absent").has_value());
  CHECK(file.find_strings("absent") == nullptr);
  CHECK_THROWS_WITH(file.require_int("absent"), ContainsSubstring("'absent' is missing"));
  CHECK_THROWS_WITH(file.require_string("absent"), ContainsSubstring("'absent' is missing"));
  CHECK_THROWS_WITH(file.require_int("text"), ContainsSubstring("'text' is a string; an integer is needed"));
  CHECK_THROWS_WITH(file.find_int("huge"), ContainsSubstring("9223372036854775808"));
  CHECK_THROWS_WITH(file.find_string("u8"), ContainsSubstring("a string is needed"));
  CHECK_THROWS_WITH(file.find_bool("u8"), ContainsSubstring("a truth value is needed"));
  CHECK_THROWS_WITH(file.find_strings("ints"), ContainsSubstring("'ints' is an array of integers"));
}

TEST_CASE("Damaged GGUF files are refused with the reason") {
  const TempDir folder;
  struct Case {
    std::function<void(GgufParts&)> damage;
    const char* reason;
  };
  const std::uint64_t large = std::uint64_t{1} << 62;
  const std::vector<Case> cases = {
      {[](GgufParts& parts) { parts.magic = "GGML"; }, "does not begin with 'GGUF'"},
      {[](GgufParts& parts) { parts.version = 0; }, "version 0; versions 2 to 3"},
      {[](GgufParts& parts) { parts.version = 1; }, "version 1; versions 2 to 3"},
      {[](GgufParts& parts) { parts.version = 4; }, "version 4; versions 2 to 3"},
      {[](GgufParts& parts) { parts.version = 0x03000000; }, "big-endian"},
      {[&](GgufParts& parts) { parts.tensor_count = large; }, "table of tensors: 4611686018427387904 entries"},
      {[](GgufParts& parts) { parts.tensor_count = 3; }, "damaged"},
      {[](GgufParts& parts) { parts.tensor_count = 1; }, "64 bytes after its last tensor"},
      {[&](GgufParts& parts) { parts.pair_count = large; }, "the metadata: 4611686018427387904 entries"},
      {[](GgufParts& parts) { parts.pair_count = 2; }, "damaged"},
      {[](GgufParts& parts) { parts.pairs.push_back(parts.pairs[0]); }, "'general.architecture' is listed twice"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("", kU32, u32(1)); }, "without a name"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair(std::string(70000, 'k'), kU32, u32(1)); },
       "is 70000; at most 65535"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", 13, u32(1)); }, "'k' is of unknown type 13"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(13, 1, u32(1))); },
       "array of unknown type 13"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(kArray, 1, gguf_array(kU8, 0, ""))); },
       "array of arrays"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kBool, "\x02"); }, "truth value of 2"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(kBool, 1, "\x02")); },
       "truth value of 2"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(kU64, 1, u64(~0ull))); },
       "above 2^63"},
      {[&](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(kF64, large, "")); },
       "bytes are left"},
      {[&](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(kString, large, "")); },
       "bytes are left"},
      {[&](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kArray, gguf_array(kBool, large, "")); },
       "bytes are left"},
      {[](GgufParts& parts) { parts.pairs[0] = gguf_pair("k", kString, u64(~0ull)); }, "ends within metadata key 'k'"},
      {[](GgufParts& parts) { parts.pairs.push_back(gguf_pair("general.alignment", kU32, u32(0))); },
       "general.alignment is 0"},
      {[](GgufParts& parts) { parts.pairs.push_back(gguf_pair("general.alignment", kU32, u32(48))); }, "power of two"},
      {[](GgufParts& parts) { parts.pairs.push_back(gguf_pair("general.alignment", kU32, u32(1u << 31))); },
       "power of two"},
      {[](GgufParts& parts) { parts.pairs.push_back(gguf_pair("general.alignment", kF32, u32(32))); },
       "not an integer"},
      {[](GgufParts& parts) { parts.tensors[1].name = "a"; }, "tensor 'a' is listed twice"},
      {[](GgufParts& parts) { parts.tensors[1].name = ""; }, "without a name"},
      {[](GgufParts& parts) { parts.tensors[1].name = std::string(256, 'n'); }, "at most 255"},
      {[](GgufParts& parts) { parts.tensors[0].sizes = {}; }, "has 0 dimensions"},
      {[](GgufParts& parts) {
         parts.tensors[0].sizes = {1, 1, 1, 1, 6};
       },
       "has 5 dimensions"},
      {[](GgufParts& parts) {
         parts.tensors[0].sizes = {3, 0};
       },
       "dimension of size 0"},
      {[](GgufParts& parts) {
         parts.tensors[0].sizes = {3, ~0ull};
       },
       "dimension of size 18446744073709551615"},
      {[&](GgufParts& parts) {
         parts.tensors[0].sizes = {large, 4};
       },
       "overflows"},
      {[&](GgufParts& parts) {
         parts.tensors[0].sizes = {large / 8, 1};
       },
       "truncated: tensor 'a'"},
      {[](GgufParts& parts) { parts.tensors[1].sizes = {48}; }, "rows of 48 values, not a multiple of the 32"},
      {[](GgufParts& parts) { parts.tensors[1].type = 16; }, "type 16 (IQ2_XXS), which is not supported"},
      {[](GgufParts& parts) { parts.tensors[1].type = 24; }, "type 24 (I8), which is not supported"},
      {[](GgufParts& parts) { parts.tensors[1].type = 999; }, "type 999, which is not supported"},
      {[](GgufParts& parts) { parts.tensors[1].offset = 0; }, "they overlap"},
      {[](GgufParts& parts) { parts.tensors[1].offset = 64; }, "a hole"},
      {[](GgufParts& parts) { parts.tensors[0].offset = 32, parts.tensors[1].offset = 64; }, "a hole"},
      {[](GgufParts& parts) { parts.tensors[1].offset = 40; }, "not a multiple of the alignment 32"},
      {[](GgufParts& parts) { parts.tensors[1].offset = ~0ull - 31; }, "a hole"},
      {[](GgufParts& parts) { parts.tensors[1].sizes = {64}; }, "truncated: tensor 'b' needs 40 bytes"},
      {[](GgufParts& parts) { parts.tensors[1].data += std::string(32, 'x'); }, "32 bytes after its last tensor"},
      {[](GgufParts& parts) {
         parts.tensors[1].name = std::string("bad\n\xff");
         parts.tensors[1].type = 999;
       },
       "tensor 'bad\\x0a\\xff'"},
  };
  for (const Case& one : cases) {
    GgufParts parts = small();
    one.damage(parts);
    write_bytes(folder / "bad.gguf", parts.build());
    CHECK_THAT(refusal(folder / "bad.gguf"), ContainsSubstring(one.reason));
  }
}

TEST_CASE("A GGUF file cut at any byte is refused, and so is one with a byte too many") {
  const TempDir folder;
  const std::string bytes = small().build();
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    write_bytes(folder / "cut.gguf", std::string_view(bytes).substr(0, length));
    const std::string message = refusal(folder / "cut.gguf");
    if (message == "accepted") FAIL("accepted when cut to " << length << " of " << bytes.size());
    if (message.find("after its last tensor") != std::string::npos) FAIL("cut to " << length << ": " << message);
  }
  write_bytes(folder / "cut.gguf", bytes + '\0');
  CHECK_THAT(refusal(folder / "cut.gguf"), ContainsSubstring("1 bytes after"));
}

TEST_CASE("A quantized 1-D tensor can be read from any value to any other") {
  const TempDir folder;
  GgufParts parts = small();
  parts.tensors[1].sizes = {96};
  const std::string block = parts.tensors[1].data;
  parts.tensors[1].data += bytes_of<std::uint16_t>(0x3c00) + block.substr(2) + block;  // the middle one with scale 1
  write_bytes(folder / "m.gguf", parts.build());
  const GgufFile file(folder / "m.gguf");
  for (std::int64_t first = 0; first <= 96; ++first) {
    for (std::int64_t end = first; end <= 96; ++end) {
      std::vector<float> values(static_cast<std::size_t>(end - first)), expected;
      for (std::int64_t at = first; at < end; ++at) {
        expected.push_back((at / 32 == 1 ? 1.0f : 0.5f) * static_cast<float>(at % 16) - 1);
      }
      file.read_rows("b", first, end - first, values);
      if (values != expected) FAIL("values " << first << " to " << end);
    }
  }
}

TEST_CASE("Another alignment is honoured and tensors may be stored in any order") {
  const TempDir folder;
  GgufParts parts = small();
  parts.pairs.push_back(gguf_pair("general.alignment", kU32, u32(64)));
  parts.alignment = 64;
  parts.tensors[1].offset = 64;
  std::swap(parts.tensors[0].offset, parts.tensors[1].offset);
  std::swap(parts.tensors[0].data, parts.tensors[1].data);
  write_bytes(folder / "m.gguf", parts.build());
  const GgufFile file(folder / "m.gguf");
  std::vector<float> rows(6);
  file.read_rows("a", 0, 2, rows);
  CHECK(rows == std::vector<float>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("NaN and infinity in weights name file, tensor and position") {
  const TempDir folder;
  for (const auto& [bits, word] :
       {std::pair(0x7fc00000u, "nan"), std::pair(0xffc00001u, "nan"), std::pair(0x7f800000u, "inf"),
        std::pair(0xff800000u, "-inf"), std::pair(0x7f800001u, "nan")}) {
    GgufParts parts = small();
    parts.tensors[0].data.replace(4 * 4, 4, u32(bits));
    write_bytes(folder / "m.gguf", parts.build());
    const GgufFile file(folder / "m.gguf");
    std::vector<float> row(3);
    CHECK_NOTHROW(file.read_rows("a", 0, 1, row));
    CHECK_THROWS_WITH(file.read_rows("a", 1, 1, row), ContainsSubstring("m.gguf: tensor 'a' holds ") &&
                                                          ContainsSubstring(word) && ContainsSubstring("at [1, 1]"));
  }
  GgufParts parts = small();
  parts.tensors[0].data.replace(4 * 4, 4, bytes_of(-std::numeric_limits<float>::max()));
  parts.tensors[1].data.replace(0, 2,
                                bytes_of<std::uint16_t>(0x7c00));  // infinite scale: every value of the block is bad
  write_bytes(folder / "m.gguf", parts.build());
  const GgufFile file(folder / "m.gguf");
  std::vector<float> out(6), one(1);
  CHECK_NOTHROW(file.read_rows("a", 0, 2, out));
  CHECK_THROWS_WITH(file.read_rows("b", 17, 1, one), ContainsSubstring("at [17] (type Q4_1, shape [32])"));
}

TEST_CASE("A file that changes while it is open is noticed") {
  const TempDir folder;
  const std::string bytes = small().build();
  write_bytes(folder / "m.gguf", bytes);
  const GgufFile file(folder / "m.gguf");
  std::vector<float> row(3);
  file.read_rows("a", 0, 1, row);
  std::filesystem::resize_file(folder / "m.gguf", 10);
  try {
    file.read_rows("a", 0, 1, row);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Io);
    CHECK_THAT(error.what(), ContainsSubstring("changed while it was in use"));
  }
}

TEST_CASE("GGUF is recognised by its magic, not by its name") {
  const TempDir folder;
  write_bytes(folder / "model.bin", small().build());
  write_bytes(folder / "no.gguf", "GGU");
  write_bytes(folder / "empty.gguf", "");
  CHECK(is_gguf(folder / "model.bin"));
  CHECK_FALSE(is_gguf(folder / "no.gguf"));
  CHECK_FALSE(is_gguf(folder / "empty.gguf"));
  for (const auto& path : {folder / "absent.gguf", folder.path()}) {
    try {
      is_gguf(path);
      FAIL("no error for " << path);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Input);
    }
    CHECK_THROWS_AS(GgufFile(path), Error);
  }
}
