// Reading the configuration: what is supported is read right, the rest is refused by the name of its field.
#include <cstring>
#include <functional>

#include <nlohmann/json.hpp>

#include "model_support.h"
#include "support/catch.h"
#include "support/gguf_builder.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/model/config.h>

using namespace kvq;
using namespace kvq::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// A copy of a tiny model's folder whose config.json the test may change.
class EditedFolder {
 public:
  explicit EditedFolder(const std::string& variant = "gqa-bias") {
    for (const auto& entry : fs::directory_iterator(kSource / "tests/data/tiny" / variant / "hf")) {
      fs::copy_file(entry.path(), folder_ / entry.path().filename().string());
    }
    config = read_json(folder_ / "config.json");
  }
  ModelConfig read() const {
    write_bytes(folder_ / "config.json", config.dump());
    return read_model_config(folder_.path());
  }
  json config;

 private:
  TempDir folder_;
};

/// A tiny model's GGUF with one more key in front of the others; a filler keeps the tensors aligned.
fs::path gguf_with(const TempDir& folder, const std::string& pair, const std::string& variant = "gqa-bias") {
  std::string bytes = read_bytes(kSource / "tests/data/tiny" / variant / "model.gguf");
  std::string filler = gguf_pair("test.filler", 8, gguf_string(""));
  filler = gguf_pair("test.filler", 8, gguf_string(std::string(32 - (pair.size() + filler.size()) % 32, 'x')));
  std::uint64_t pairs = 0;
  std::memcpy(&pairs, bytes.data() + 16, 8);
  bytes.replace(16, 8, u64(pairs + 2));
  bytes.insert(24, pair + filler);
  const fs::path path = folder / "model.gguf";
  write_bytes(path, bytes);
  return path;
}

std::string pair_u32(const std::string& key, std::uint32_t value) { return gguf_pair(key, 4, u32(value)); }
std::string pair_f32(const std::string& key, float value) { return gguf_pair(key, 6, bytes_of(value)); }
std::string pair_text(const std::string& key, const std::string& value) {
  return gguf_pair(key, 8, gguf_string(value));
}

ErrorKind kind_of(const std::function<void()>& action, std::string& message) {
  try {
    action();
  } catch (const Error& error) {
    message = error.what();
    return error.kind();
  }
  message = "no error";
  return ErrorKind::Interrupted;
}

}  // namespace

TEST_CASE("Folder and GGUF of the same model have the same configuration") {
  for (const std::string variant :
       {"mha-tied", "gqa-untied", "gqa-bias", "mqa", "headdim", "mistral", "qwen2", "qwen3", "gemma3"}) {
    INFO(variant);
    const fs::path base = kSource / "tests/data/tiny" / variant;
    const ModelConfig a = read_model_config(base / "hf"), b = read_model_config(base / "model.gguf");
    CHECK(a.kv == b.kv);
    CHECK(a.rope == b.rope);
    CHECK(a.hidden == b.hidden);
    CHECK(a.intermediate == b.intermediate);
    CHECK(a.vocab == b.vocab);
    CHECK(a.context == b.context);
    CHECK(a.norm_eps == Approx(b.norm_eps));
    CHECK(a.tied_embeddings == b.tied_embeddings);
    CHECK(a.attention_bias == b.attention_bias);
    CHECK(a.output_bias == b.output_bias);
    CHECK(a.query_scale == b.query_scale);
    CHECK(a.embedding_scale == b.embedding_scale);
    CHECK(a.architecture == b.architecture);
    CHECK(a.parameters == b.parameters);
  }
}

TEST_CASE("Configuration of a folder: sizes, linear RoPE and a head size of its own") {
  const ModelConfig linear = read_model_config(kSource / "tests/data/tiny/gqa-untied/hf");
  CHECK(linear.architecture == "llama");
  CHECK(linear.kv == KvShape{.layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 8});
  CHECK(linear.rope.kind == "linear");
  CHECK(linear.rope.factor == 2.0);
  CHECK(linear.rope.theta == 1e6);
  CHECK_FALSE(linear.tied_embeddings);
  CHECK(read_model_config(kSource / "tests/data/tiny/headdim/hf").kv.head_dim == 16);
  CHECK(read_model_config(kSource / "tests/data/tiny/gqa-bias/hf").attention_bias);
}

TEST_CASE("Configurations of Qwen and Gemma: biases, norms of heads, local layers") {
  const fs::path tiny = kSource / "tests/data/tiny";
  const ModelConfig qwen2 = read_model_config(tiny / "qwen2/hf"), qwen3 = read_model_config(tiny / "qwen3/hf");
  CHECK((qwen2.attention_bias && !qwen2.output_bias && !qwen2.qk_norm));
  CHECK((!qwen3.attention_bias && qwen3.qk_norm && !qwen3.post_norms));
  CHECK(qwen3.kv.head_dim == 16);
  CHECK_FALSE(qwen3.rope.has_local_layers());

  const ModelConfig gemma3 = read_model_config(tiny / "gemma3/hf");
  CHECK((gemma3.qk_norm && gemma3.post_norms && gemma3.tied_embeddings));
  CHECK(gemma3.activation == Activation::GeluTanh);
  CHECK(gemma3.embedding_scale == Approx(std::sqrt(24.0)));
  CHECK(gemma3.query_scale == 1.0);
  CHECK(gemma3.rope.is_local == std::vector<std::uint8_t>{1, 1, 1, 1, 1, 0, 1});
  CHECK(gemma3.rope.window_of(0) == 8);
  CHECK(gemma3.rope.window_of(5) == 0);
  CHECK(gemma3.rope.of(5) == RopeParams{.kind = "linear", .theta = 1e6, .rotary_dim = 16, .factor = 4.0});
  CHECK(gemma3.rope.of(6) == RopeParams{.theta = 1e4, .rotary_dim = 16});

  const ModelConfig types = read_model_config(tiny / "gemma3-types/hf");
  CHECK(types.rope.is_local == std::vector<std::uint8_t>{1, 0, 1});
  CHECK(types.rope.of(0).theta == 500.0);
  CHECK(types.rope.of(1).theta == 1e5);
  CHECK(types.query_scale == Approx(std::sqrt(16.0 / 10.0)));
}

TEST_CASE("A window that a configuration does not use is no matter, one that it uses is refused by its name") {
  EditedFolder unused("qwen2");
  unused.config["use_sliding_window"] = true;
  unused.config["max_window_layers"] = unused.config["num_hidden_layers"];
  CHECK_NOTHROW(unused.read());
  EditedFolder used("qwen2");
  used.config["use_sliding_window"] = true;
  CHECK_THROWS_WITH(used.read(), ContainsSubstring("use_sliding_window = true is not supported"));
  EditedFolder types("qwen3");
  types.config["layer_types"] = {"full_attention", "sliding_attention"};
  CHECK_THROWS_WITH(types.read(), ContainsSubstring("layer_types"));
}

TEST_CASE("Configurations of Gemma 3: older and newer words say the same, what is missing or strange is named") {
  EditedFolder newer("gemma3");
  const ModelConfig older = newer.read();
  newer.config.erase("rope_theta");
  newer.config.erase("rope_scaling");
  newer.config.erase("rope_local_base_freq");
  newer.config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  newer.config["layer_types"] = json::array();
  for (int layer = 0; layer < 7; ++layer)
    newer.config["layer_types"].push_back(layer == 5 ? "full_attention" : "sliding_attention");
  CHECK(newer.read().rope == older.rope);

  EditedFolder pattern("gemma3");
  pattern.config["sliding_window_pattern"] = 3;
  CHECK(pattern.read().rope.is_local == std::vector<std::uint8_t>{1, 1, 0, 1, 1, 0, 1});
  pattern.config["sliding_window_pattern"] = 1;
  CHECK_FALSE(pattern.read().rope.has_local_layers());

  const std::vector<std::pair<std::string, json>> strange = {
      {"hidden_activation", "gelu"},
      {"use_bidirectional_attention", true},
      {"final_logit_softcapping", 30.0},
      {"layer_types", {"full_attention"}},
      {"layer_types",
       {"full_attention", "full_attention", "full_attention", "full_attention", "full_attention", "full_attention",
        "chunked_attention"}},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}}},
      {"query_pre_attn_scalar", 0}};
  for (const auto& [field, value] : strange) {
    EditedFolder folder("gemma3");
    folder.config[field] = value;
    std::string message;
    kind_of([&] { folder.read(); }, message);
    CHECK_THAT(message, ContainsSubstring(field));
  }
  EditedFolder without("gemma3");
  without.config.erase("sliding_window");
  CHECK_THROWS_WITH(without.read(), ContainsSubstring("sliding_window is missing"));
}

TEST_CASE("A field of config.json that is not supported is refused by its name") {
  const std::vector<std::pair<std::string, json>> cases = {
      {"model_type", "gemma2"},
      {"final_logit_softcapping", 30.0},
      {"attn_logit_softcapping", 50.0},
      {"quantization_config", {{"quant_method", "gptq"}}},
      {"sliding_window", 4096},
      {"hidden_act", "gelu"},
      {"mlp_bias", true},
      {"partial_rotary_factor", 0.5},
      {"num_local_experts", 8},
      {"layer_types", {"full_attention", "sliding_attention"}},
      {"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}},
      {"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 4.0}}},
      {"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}},
  };
  for (const auto& [field, value] : cases) {
    EditedFolder folder;
    folder.config[field] = value;
    std::string message;
    CHECK(kind_of([&] { folder.read(); }, message) == ErrorKind::Input);
    CHECK_THAT(message, ContainsSubstring(field) && ContainsSubstring("not supported"));
  }
}

TEST_CASE("A field of config.json that is missing, of another type or out of range is named") {
  const std::vector<std::pair<std::string, json>> cases = {
      {"hidden_size", nullptr},
      {"hidden_size", 0},
      {"hidden_size", -32},
      {"hidden_size", "32"},
      {"hidden_size", 32.5},
      {"num_attention_heads", 0},
      {"num_hidden_layers", 0},
      {"vocab_size", 18446744073709551615ull},
      {"intermediate_size", 2147483648},
      {"rms_norm_eps", nullptr},
      {"rms_norm_eps", 0.0},
      {"num_key_value_heads", 3},
      {"attention_bias", "yes"},
      {"rope_parameters", 7},
      {"rope_theta", -1.0},
      {"max_position_embeddings", 0},
  };
  for (const auto& [field, value] : cases) {
    EditedFolder folder;
    folder.config[field] = value;
    INFO(field << " = " << value.dump());
    std::string message;
    CHECK(kind_of([&] { folder.read(); }, message) == ErrorKind::Format);
    CHECK_THAT(message, ContainsSubstring(field) && ContainsSubstring("config.json"));
  }
  EditedFolder incomplete;
  incomplete.config["rope_parameters"] = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}};
  CHECK_THROWS_WITH(incomplete.read(), ContainsSubstring("rope_parameters.high_freq_factor is missing"));
}

TEST_CASE("A configuration that does not fit the tensors names the tensor and both shapes") {
  EditedFolder vocabulary;
  vocabulary.config["vocab_size"] = 321;
  CHECK_THROWS_WITH(vocabulary.read(), ContainsSubstring("model.embed_tokens.weight") &&
                                           ContainsSubstring("[320, 32]") && ContainsSubstring("[321, 32]"));
  EditedFolder untied;
  untied.config["tie_word_embeddings"] = false;
  CHECK_THROWS_WITH(untied.read(), ContainsSubstring("lm_head.weight is missing"));
  EditedFolder shallow;  // weights of a layer that would be left out
  shallow.config["num_hidden_layers"] = 1;
  CHECK_THROWS_WITH(shallow.read(), ContainsSubstring("model.layers.1.") && ContainsSubstring("not supported"));
  EditedFolder unbiased;
  unbiased.config["attention_bias"] = false;
  CHECK_THROWS_WITH(unbiased.read(), ContainsSubstring("bias") && ContainsSubstring("not supported"));
}

TEST_CASE("RoPE of config.json: both styles, and a contradiction between them") {
  const json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  EditedFolder fresh, old;
  fresh.config["rope_parameters"] = llama3;
  fresh.config["rope_parameters"]["rope_type"] = "llama3";
  fresh.config["rope_parameters"]["rope_theta"] = 500000.0;
  old.config.erase("rope_parameters");
  old.config["rope_theta"] = 500000.0;
  old.config["rope_scaling"] = llama3;
  old.config["rope_scaling"]["rope_type"] = "llama3";
  CHECK(fresh.read().rope == old.read().rope);
  CHECK(fresh.read().rope.kind == "llama3");
  CHECK(fresh.read().rope.theta == 500000.0);
  EditedFolder both;
  both.config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  CHECK_THROWS_WITH(both.read(), ContainsSubstring("contradict"));
}

TEST_CASE("num_key_value_heads may be left out where that means one per query head, not for mistral") {
  EditedFolder llama("mha-tied");
  llama.config.erase("num_key_value_heads");
  CHECK(llama.read().kv.kv_heads == 4);
  EditedFolder mistral("mistral");
  mistral.config.erase("num_key_value_heads");
  CHECK_THROWS_WITH(mistral.read(), ContainsSubstring("num_key_value_heads is missing"));
}

TEST_CASE("A key of a GGUF that is not supported is refused by its name") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"llama.expert_count", pair_u32("llama.expert_count", 8)},
      {"llama.attention.sliding_window", pair_u32("llama.attention.sliding_window", 4096)},
      {"llama.rope.scaling.type", pair_text("llama.rope.scaling.type", "yarn")},
      {"llama.attention.value_length", pair_u32("llama.attention.value_length", 16)},
      {"llama.logit_scale", pair_f32("llama.logit_scale", 8.0f)},
  };
  for (const auto& [key, pair] : cases) {
    const TempDir folder;
    std::string message;
    CHECK(kind_of([&] { read_model_config(gguf_with(folder, pair)); }, message) == ErrorKind::Input);
    CHECK_THAT(message, ContainsSubstring(key) && ContainsSubstring("not supported"));
  }
}

TEST_CASE("Old and new spelling of linear scaling in a GGUF") {
  const TempDir a, b, c;
  CHECK(read_model_config(gguf_with(a, pair_f32("llama.rope.scale_linear", 4.0f))).rope.factor == 4.0);
  CHECK(read_model_config(gguf_with(b, pair_f32("llama.rope.scale_linear", 1.0f))).rope.kind == "default");
  CHECK_THROWS_WITH(read_model_config(gguf_with(c, pair_text("llama.rope.scaling.type", "linear"))),
                    ContainsSubstring("llama.rope.scaling.factor is missing"));
}

namespace {

/// A GGUF of one layer, all weights zero, one head of 8, with the given divisors of RoPE.
fs::path gguf_with_factors(const TempDir& folder, const std::vector<float>& factors) {
  GgufParts parts;
  parts.pairs = {pair_text("general.architecture", "llama"), pair_u32("llama.embedding_length", 8),
                 pair_u32("llama.feed_forward_length", 4),   pair_u32("llama.block_count", 1),
                 pair_u32("llama.attention.head_count", 1),  pair_f32("llama.attention.layer_norm_rms_epsilon", 1e-5f),
                 pair_f32("llama.rope.freq_base", 500000.0f)};
  std::uint64_t offset = 0;
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& sizes,
                       const std::vector<float>& values = {}) {
    std::uint64_t count = 1;
    for (std::uint64_t size : sizes) count *= size;
    std::string data(count * 4, '\0');
    if (!values.empty()) std::memcpy(data.data(), values.data(), data.size());
    parts.tensors.push_back({name, sizes, 0, offset, data});
    offset += (data.size() + 31) / 32 * 32;
  };
  add("token_embd.weight", {8, 6});
  add("output_norm.weight", {8});
  add("rope_freqs.weight", {factors.size()}, factors);
  for (const char* part : {"attn_q", "attn_k", "attn_v", "attn_output"})
    add(std::string("blk.0.") + part + ".weight", {8, 8});
  for (const char* part : {"attn_norm", "ffn_norm"}) add(std::string("blk.0.") + part + ".weight", {8});
  for (const char* part : {"ffn_gate", "ffn_up"}) add(std::string("blk.0.") + part + ".weight", {8, 4});
  add("blk.0.ffn_down.weight", {4, 8});
  write_bytes(folder / "model.gguf", parts.build());
  return folder / "model.gguf";
}

}  // namespace

TEST_CASE("rope_freqs.weight of a GGUF is used as llama3 scaling, or refused") {
  // inv_freq of transformers' LlamaRotaryEmbedding for head_dim 8, theta 500000, llama3 (8, 1, 4, 8192):
  const std::vector<double> expected = {1.0, 0.0376060307, 0.000524846022, 6.64786967e-06};
  std::vector<float> factors;
  for (int pair = 0; pair < 4; ++pair) {
    factors.push_back(static_cast<float>(std::pow(500000.0, -pair / 4.0) / expected[pair]));
  }
  const TempDir folder;
  const ModelConfig config = read_model_config(gguf_with_factors(folder, factors));
  CHECK(config.rope.kind == "llama3");
  CHECK(config.vocab == 6);
  const std::vector<double> found = config.rope.inverse_frequencies();
  for (int pair = 0; pair < 4; ++pair) CHECK(found[pair] == Approx(expected[pair]).epsilon(1e-6));

  const TempDir plain, other, short_one;
  CHECK(read_model_config(gguf_with_factors(plain, {1, 1, 1, 1})).rope.kind == "default");
  CHECK_THROWS_WITH(read_model_config(gguf_with_factors(other, {1, 2, 3, 4})),
                    ContainsSubstring("rope_freqs.weight") && ContainsSubstring("not supported"));
  CHECK_THROWS_WITH(read_model_config(gguf_with_factors(short_one, {1, 1, 8})),
                    ContainsSubstring("one dimension of 4"));
}

TEST_CASE("A path that is no model says so") {
  const TempDir folder;
  write_bytes(folder / "notes.txt", "not a model");
  CHECK_THROWS_WITH(read_model_config(folder / "notes.txt"), ContainsSubstring("neither a GGUF file nor"));
  CHECK_THROWS_AS(read_model_config(folder / "absent.gguf"), Error);
  CHECK_THROWS_AS(read_model_config(folder.path()), Error);
}
