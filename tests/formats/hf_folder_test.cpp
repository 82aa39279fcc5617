#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/formats/gguf.h>
#include <kvq/formats/hf_folder.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";
const std::string kShard1 = "model-00001-of-00002.safetensors", kShard2 = "model-00002-of-00002.safetensors";

std::string one_tensor(const std::string& name, float value) {
  return safetensors("{" + entry(name, "F32", "[1]", "[0,4]") + "}", bytes_of(value));
}

void write_sharded(const TempDir& folder) {
  write_bytes(folder / "config.json", R"({"model_type": "llama"})");
  write_bytes(folder / kShard1, one_tensor("a", 1));
  write_bytes(folder / kShard2, one_tensor("b", 2));
  write_bytes(folder / kIndex,
              R"({"metadata":{"total_size":8},"weight_map":{"a":")" + kShard1 + R"(","b":")" + kShard2 + "\"}}");
}

void check_refused(const TempDir& folder, ErrorKind kind, const std::string& reason) {
  try {
    const HfFolder model(folder.path());
    FAIL("accepted instead of: " << reason);
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    CHECK_THAT(error.what(), ContainsSubstring(folder.path().string()) && ContainsSubstring(reason));
  }
}

std::vector<float> read_all(const TensorSource& source, const std::string& name) {
  const TensorInfo* info = source.find(name);
  REQUIRE(info != nullptr);
  std::int64_t elements = 1;
  for (const std::int64_t size : info->shape) elements *= size;
  std::vector<float> values(static_cast<std::size_t>(elements));
  source.read_rows(name, 0, info->shape[0], values);
  return values;
}

}  // namespace

TEST_CASE("A sharded folder is one source") {
  const TempDir folder;
  write_sharded(folder);
  const HfFolder model(folder.path());
  CHECK(model.path() == folder.path());
  CHECK(model.config()["model_type"] == "llama");
  CHECK(model.names() == std::vector<std::string>{"a", "b"});
  CHECK(read_all(model, "a") == std::vector<float>{1});
  CHECK(read_all(model, "b") == std::vector<float>{2});
  CHECK(model.find("c") == nullptr);
  model.release("a");
  CHECK(read_all(model, "a") == std::vector<float>{1});
  CHECK(model.model_files() ==
        std::vector<std::filesystem::path>{folder / "config.json", folder / kShard1, folder / kShard2});
}

TEST_CASE("A folder with one safetensors file needs no index") {
  const TempDir folder;
  write_bytes(folder / "config.json", "{}");
  write_bytes(folder / "model.safetensors", one_tensor("a", 1));
  const HfFolder model(folder.path());
  CHECK(model.names() == std::vector<std::string>{"a"});
  CHECK(model.model_files().size() == 2);
}

TEST_CASE("Folders that are not a model are refused with what is missing") {
  const TempDir folder;
  check_refused(folder, ErrorKind::Input, "has no config.json");
  write_bytes(folder / "config.json", "[]");
  check_refused(folder, ErrorKind::Format, "not a JSON object");
  write_bytes(folder / "config.json", "{");
  check_refused(folder, ErrorKind::Format, "not valid JSON");
  write_bytes(folder / "config.json", "{}");
  check_refused(folder, ErrorKind::Input, "neither model.safetensors nor model.safetensors.index.json");
  write_bytes(folder / "pytorch_model.bin", "x");
  write_bytes(folder / kShard1, one_tensor("a", 1));
  check_refused(folder, ErrorKind::Input, "; found '" + kShard1 + "', 'pytorch_model.bin'");
  CHECK_THROWS_WITH(HfFolder(folder / "config.json"), ContainsSubstring("is not a folder"));
  CHECK_THROWS_WITH(HfFolder(folder / "absent"), ContainsSubstring("No such file"));
}

TEST_CASE("Shards and index must agree") {
  const TempDir folder;
  write_sharded(folder);
  SECTION("shard missing") {
    std::filesystem::remove(folder / kShard2);
    check_refused(folder, ErrorKind::Input, "shard '" + kShard2 + "' is missing");
  }
  SECTION("tensor absent") {
    write_bytes(folder / kShard2, one_tensor("z", 2));
    check_refused(folder, ErrorKind::Format, "tensor 'b' should be in '" + kShard2 + "'");
  }
  SECTION("tensor in another shard") {
    write_bytes(folder / kShard1, one_tensor("b", 1));
    write_bytes(folder / kShard2, one_tensor("a", 1));
    check_refused(folder, ErrorKind::Format, "but is in '" + kShard2 + "'");
  }
  SECTION("tensor in two shards") {
    write_bytes(folder / kShard2,
                safetensors("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[4,8]") + "}",
                            std::string(8, '\0')));
    check_refused(folder, ErrorKind::Format, "tensor 'a' is in two shards, '" + kShard1 + "' and '" + kShard2 + "'");
  }
  SECTION("shard cut short") {
    const std::string bytes = one_tensor("b", 2);
    write_bytes(folder / kShard2, std::string_view(bytes).substr(0, bytes.size() - 1));
    check_refused(folder, ErrorKind::Format, "truncated");
  }
  SECTION("no weight map") {
    write_bytes(folder / kIndex, "{}");
    check_refused(folder, ErrorKind::Format, "no object weight_map");
  }
  SECTION("empty weight map") {
    write_bytes(folder / kIndex, R"({"weight_map":{}})");
    check_refused(folder, ErrorKind::Format, "lists no tensor");
  }
  SECTION("a shard outside the folder, or of another kind") {
    for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "", "model.bin"}) {
      write_bytes(folder / kIndex, std::string(R"({"weight_map":{"a":")") + name + "\"}}");
      check_refused(folder, ErrorKind::Format, "the shard of tensor 'a' is '" + std::string(name) + "'");
    }
    write_bytes(folder / kIndex, R"({"weight_map":{"a":3}})");
    check_refused(folder, ErrorKind::Format, "not a string");
  }
}

// The tiny models (scripts/reference/make_tiny.py) were written by the gguf and safetensors Python packages.
TEST_CASE("Tiny models hold the same weights as GGUF and as Hugging Face folder") {
  const std::filesystem::path tiny = std::filesystem::path(KVQ_SOURCE_DIR) / "tests/data/tiny";
  const std::map<std::string, std::string> same = {{"token_embd.weight", "model.embed_tokens.weight"},
                                                   {"output_norm.weight", "model.norm.weight"},
                                                   {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight"},
                                                   {"blk.0.ffn_down.weight", "model.layers.0.mlp.down_proj.weight"}};
  int models = 0;
  for (const auto& model : std::filesystem::directory_iterator(tiny)) {
    INFO(model.path());
    if (!exists(model.path() / "model.gguf")) continue;  // a folder alone
    const GgufFile gguf(model.path() / "model.gguf");
    const std::string architecture = gguf.require_string("general.architecture");
    const HfFolder folder(model.path() / "hf");
    for (const auto& [gguf_name, hf_name] : same) {
      REQUIRE(gguf.find(gguf_name) != nullptr);
      REQUIRE(folder.find(hf_name) != nullptr);
      CHECK(gguf.find(gguf_name)->shape == folder.find(hf_name)->shape);
      std::vector<float> expected = read_all(folder, hf_name);
      if (architecture == "gemma3" && gguf_name == "output_norm.weight") {
        for (float& weight : expected) weight += 1;  // a GGUF holds what multiplies
      }
      CHECK(read_all(gguf, gguf_name) == expected);
    }
    const auto layers = folder.config()["num_hidden_layers"].get<std::int64_t>();
    CHECK(gguf.require_int(architecture + ".block_count") == layers);
    ++models;
  }
  CHECK(models >= 9);
}
