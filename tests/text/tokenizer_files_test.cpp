// Tokenizer files that are damaged or ask for what is not supported, and the settings around the ids.

#include <cmath>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/gguf_builder.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/text/tokenizer.h>

using namespace kvq;
using namespace kvq::test;
using nlohmann::json;

namespace fs = std::filesystem;

namespace {

enum : std::uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9 };

std::string strings(const std::vector<std::string>& list) {
  std::string elements;
  for (const std::string& text : list) elements += gguf_string(text);
  return gguf_array(kString, list.size(), elements);
}

template <typename T>
std::string numbers(std::uint32_t type, const std::vector<T>& list) {
  std::string elements;
  for (const T value : list) elements += bytes_of(value);
  return gguf_array(type, list.size(), elements);
}

/// The pairs of a tokenizer, by the last part of their key.
using Pairs = std::map<std::string, std::pair<std::uint32_t, std::string>>;

Pairs byte_level() {
  return {{"model", {kString, gguf_string("gpt2")}},
          {"pre", {kString, gguf_string("gpt-2")}},
          {"tokens", {kArray, strings({"<s>", "a", "b", "Ġ", "ab", "Ġab"})}},
          {"token_type", {kArray, numbers<std::int32_t>(kI32, {3, 1, 1, 1, 1, 1})}},
          {"merges", {kArray, strings({"a b", "Ġ ab"})}},
          {"bos_token_id", {kU32, u32(0)}}};
}

Pairs sentencepiece() {
  return {{"model", {kString, gguf_string("llama")}},
          {"tokens", {kArray, strings({"<unk>", "<s>", "a", "b", "▁", "ab", "▁ab"})}},
          {"token_type", {kArray, numbers<std::int32_t>(kI32, {2, 3, 1, 1, 1, 1, 1})}},
          {"scores", {kArray, numbers<float>(kF32, {0, 0, -3, -4, -5, -1, -2})}},
          {"unknown_token_id", {kU32, u32(0)}},
          {"bos_token_id", {kU32, u32(1)}}};
}

std::unique_ptr<Tokenizer> load_gguf(const Pairs& pairs) {
  GgufParts parts;
  for (const auto& [key, value] : pairs)
    parts.pairs.push_back(gguf_pair("tokenizer.ggml." + key, value.first, value.second));
  const TempDir folder;
  write_bytes(folder / "m.gguf", parts.build());
  return load_tokenizer(folder / "m.gguf");
}

template <typename Load>
std::string refusal(const Load& load, ErrorKind kind = ErrorKind::Format) {
  try {
    load();
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "accepted";
}

std::string gguf_refusal(Pairs pairs, const std::string& key, std::uint32_t type, const std::string& value) {
  pairs[key] = {type, value};
  return refusal([&] { load_gguf(pairs); });
}

/// Files of a Hugging Face folder, by name.
using Folder = std::map<std::string, json>;

Folder hf(const std::string& kind) {
  return {{"tokenizer.json",
           json::parse(std::ifstream(KVQ_SOURCE_DIR "/tests/golden/tokenizers/" + kind + ".tokenizer.json"))}};
}

std::unique_ptr<Tokenizer> load_hf(const Folder& files) {
  const TempDir folder;
  for (const auto& [name, content] : files) {
    write_bytes(folder / name, content.is_string() ? content.get<std::string>() : content.dump());
  }
  return load_tokenizer(folder.path());
}

std::string hf_refusal(const std::string& kind, const std::string& pointer, const json& value) {
  Folder files = hf(kind);
  files["tokenizer.json"][json::json_pointer(pointer)] = value;
  const std::string message = refusal([&] { load_hf(files); });
  if (message != "accepted") CHECK_THAT(message, ContainsSubstring("tokenizer.json"));
  return message;
}

}  // namespace

TEST_CASE("A small tokenizer is read from GGUF and used as written") {
  const auto tokenizer = load_gguf(byte_level());
  CHECK(tokenizer->encode("ab ab<s>ba") == std::vector<std::int32_t>{4, 5, 0, 2, 1});
  CHECK(tokenizer->encode("<s>", false).empty());  // bytes without a token are left out, as in Hugging Face
  CHECK(tokenizer->encode("axb") == std::vector<std::int32_t>{4});
  CHECK(tokenizer->decode({4, 5, 0}) == "ab ab<s>");
  CHECK(tokenizer->bos_id == 0);
  CHECK_FALSE(tokenizer->adds_bos);
  CHECK_THROWS_AS(tokenizer->decode({6}), Error);
  CHECK_THROWS_AS(tokenizer->decode({-1}), Error);
  CHECK_THROWS_AS(tokenizer->encode("a\xFF"), Error);

  const auto pieces = load_gguf(sentencepiece());
  CHECK(pieces->encode("ab ab") == std::vector<std::int32_t>{6, 6});
  CHECK(pieces->encode("aéèb") == std::vector<std::int32_t>{4, 2, 0, 3});  // no byte tokens: unknown, once
  CHECK(pieces->adds_bos);
  Pairs unprefixed = sentencepiece();
  unprefixed["add_space_prefix"] = {kBool, std::string(1, '\0')};
  CHECK(load_gguf(unprefixed)->encode("ab ab") == std::vector<std::int32_t>{5, 6});
  CHECK(load_gguf(unprefixed)->decode({6}) == " ab");
  CHECK(pieces->decode({6, 6}) == "ab ab");
}

TEST_CASE("SentencePiece merges single characters that have no token, and writes what is left of them as bytes") {
  Pairs pairs = sentencepiece();
  pairs["tokens"] = {kArray, strings({"<unk>", "<s>", "a", "b", "▁", "éa", "<0xC3>", "<0xA9>"})};
  pairs["token_type"] = {kArray, numbers<std::int32_t>(kI32, {2, 3, 1, 1, 1, 1, 6, 6})};
  pairs["scores"] = {kArray, numbers<float>(kF32, {0, 0, -3, -4, -5, -1, 0, 0})};
  CHECK(load_gguf(pairs)->encode("éaé") == std::vector<std::int32_t>{4, 5, 6, 7});
  CHECK(load_gguf(pairs)->decode({4, 5, 6, 7}) == "éaé");
  CHECK(load_gguf(pairs)->decode({6}) == "\uFFFD");
}

TEST_CASE("GGUF tokenizers that are damaged or unknown are refused by name") {
  const auto bad = [](const std::string& key, std::uint32_t type, const std::string& value) {
    return gguf_refusal(byte_level(), key, type, value);
  };
  const auto without = [](Pairs pairs, const std::string& key) {
    pairs.erase(key);
    return refusal([&] { load_gguf(pairs); });
  };
  CHECK_THAT(bad("model", kString, gguf_string("bert")), ContainsSubstring("tokenizer.ggml.model 'bert'"));
  CHECK_THAT(bad("model", kString, gguf_string("t5")), ContainsSubstring("'gpt2'"));
  const std::string unknown = bad("pre", kString, gguf_string("tekken"));
  CHECK_THAT(unknown, ContainsSubstring("tokenizer.ggml.pre 'tekken'"));
  for (const char* known : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) CHECK_THAT(unknown, ContainsSubstring(known));
  CHECK_THAT(bad("pre", kString, gguf_string("default")), ContainsSubstring("'default'"));
  CHECK_THAT(without(byte_level(), "pre"), ContainsSubstring("pre is missing"));
  CHECK_THAT(without(byte_level(), "model"), ContainsSubstring("tokenizer.ggml.model"));
  CHECK_THAT(without(byte_level(), "tokens"), ContainsSubstring("tokenizer.ggml.tokens"));
  CHECK_THAT(without(byte_level(), "merges"), ContainsSubstring("tokenizer.ggml.merges"));
  CHECK_THAT(bad("tokens", kArray, strings({"<s>", "a", "b", "Ġ", "ab", "a"})), ContainsSubstring("tokens 1 and 5"));
  CHECK_THAT(bad("tokens", kArray, strings({"<s>", "a", "b", "\xFF", "ab", "x"})),
             ContainsSubstring("token 3 is not valid UTF-8"));
  CHECK_THAT(bad("token_type", kArray, numbers<std::int32_t>(kI32, {3, 1})), ContainsSubstring("has 2 entries"));
  CHECK_THAT(bad("token_type", kArray, numbers<std::int32_t>(kI32, {3, 1, 1, 1, 9, 1})),
             ContainsSubstring("of token 4 is 9"));
  CHECK_THAT(bad("merges", kArray, strings({"a c"})), ContainsSubstring("'c'"));
  CHECK_THAT(bad("merges", kArray, strings({"b a"})), ContainsSubstring("'ba'"));
  for (const std::string line : {"ab", "a b c", " a", "a ", ""})
    CHECK_THAT(bad("merges", kArray, strings({line})), ContainsSubstring("merge '"));
  CHECK_THAT(bad("bos_token_id", kU32, u32(6)), ContainsSubstring("bos_token_id is 6"));
  CHECK_THAT(bad("eos_token_id", kU32, u32(99)), ContainsSubstring("eos_token_id is 99"));
  Pairs no_bos = byte_level();
  no_bos.erase("bos_token_id");
  CHECK_THAT(gguf_refusal(no_bos, "add_bos_token", kBool, "\1"), ContainsSubstring("bos_token_id is missing"));

  CHECK_THAT(without(sentencepiece(), "scores"), ContainsSubstring("tokenizer.ggml.scores"));
  CHECK_THAT(gguf_refusal(sentencepiece(), "scores", kArray, numbers<float>(kF32, {0, 0, NAN, 0, 0, 0, 0})),
             ContainsSubstring("token 2"));
  CHECK_THAT(gguf_refusal(sentencepiece(), "remove_extra_whitespaces", kBool, "\1"),
             ContainsSubstring("remove_extra_whitespaces"));
  CHECK_THAT(gguf_refusal(sentencepiece(), "unknown_token_id", kU32, u32(7)),
             ContainsSubstring("unknown_token_id is 7"));
  CHECK_THAT(gguf_refusal(sentencepiece(), "precompiled_charsmap", kArray, numbers<std::int32_t>(kI32, {1})),
             ContainsSubstring("precompiled_charsmap"));
  CHECK_THAT(gguf_refusal(sentencepiece(), "token_type", kArray, numbers<std::int32_t>(kI32, {2, 3, 1, 1, 4, 1, 1})),
             ContainsSubstring("user-defined"));
}

TEST_CASE("Padding does not change a tokenizer's identity, anything that changes ids does") {
  const std::string base = load_gguf(byte_level())->sha256;
  CHECK(base.size() == 64);
  Pairs padded = byte_level();
  padded["tokens"] = {kArray, strings({"<s>", "a", "b", "Ġ", "ab", "Ġab", "[PAD6]"})};
  padded["token_type"] = {kArray, numbers<std::int32_t>(kI32, {3, 1, 1, 1, 1, 1, 5})};
  CHECK(load_gguf(padded)->sha256 == base);
  CHECK(load_gguf(padded)->vocab_size() == 7);
  Pairs other = byte_level();
  other["merges"] = {kArray, strings({"Ġ ab", "a b"})};
  CHECK(load_gguf(other)->sha256 != base);
  {  // same tokens, same left parts, another order
    other = byte_level();
    other["tokens"] = {kArray, strings({"<s>", "a", "b", "Ġ", "ab", "aĠ"})};
    other["merges"] = {kArray, strings({"a b", "a Ġ"})};
    const std::string one = load_gguf(other)->sha256;
    other["merges"] = {kArray, strings({"a Ġ", "a b"})};
    CHECK(load_gguf(other)->sha256 != one);
  }
  other = byte_level();
  other["pre"] = {kString, gguf_string("smollm")};
  CHECK(load_gguf(other)->sha256 != base);
  other = byte_level();
  other["token_type"] = {kArray, numbers<std::int32_t>(kI32, {1, 1, 1, 1, 1, 1})};
  CHECK(load_gguf(other)->sha256 != base);
  other = byte_level();
  other["tokens"] = {kArray, strings({"<t>", "a", "b", "Ġ", "ab", "Ġab"})};
  CHECK(load_gguf(other)->sha256 != base);
}

TEST_CASE("A tokenizer.json with a part that is not supported is refused by that part's name") {
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    CHECK_THAT(hf_refusal("gpt2", "/model/type", type), ContainsSubstring(type));
  }
  CHECK_THAT(hf_refusal("gpt2", "/normalizer", {{"type", "Lowercase"}}), ContainsSubstring("normalizer 'Lowercase'"));
  CHECK_THAT(hf_refusal("gpt2", "/normalizer", {{"type", "Prepend"}, {"prepend", "x"}}),
             ContainsSubstring("normalizer 'Prepend'"));
  CHECK_THAT(hf_refusal("gpt2", "/pre_tokenizer", {{"type", "BertPreTokenizer"}}),
             ContainsSubstring("pre_tokenizer 'BertPreTokenizer'"));
  CHECK_THAT(hf_refusal("gpt2", "/pre_tokenizer", nullptr), ContainsSubstring("without ByteLevel"));
  CHECK_THAT(hf_refusal("gpt2", "/pre_tokenizer/add_prefix_space", true), ContainsSubstring("add_prefix_space"));
  CHECK_THAT(hf_refusal("llama3", "/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext"),
             ContainsSubstring("MergedWithNext"));
  CHECK_THAT(hf_refusal("llama3", "/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", R"(\w+)"}}),
             ContainsSubstring("\\w"));
  CHECK_THAT(hf_refusal("gpt2", "/decoder", {{"type", "WordPiece"}}), ContainsSubstring("decoder 'WordPiece'"));
  CHECK_THAT(hf_refusal("sentencepiece", "/decoder", nullptr), ContainsSubstring("decoder is missing"));
  CHECK_THAT(hf_refusal("gpt2", "/post_processor", {{"type", "BertProcessing"}}),
             ContainsSubstring("post_processor 'BertProcessing'"));
  CHECK_THAT(hf_refusal("gpt2", "/model/dropout", 0.1), ContainsSubstring("dropout"));
  CHECK_THAT(hf_refusal("gpt2", "/model/end_of_word_suffix", "</w>"), ContainsSubstring("end_of_word_suffix"));
  CHECK_THAT(hf_refusal("gpt2", "/model/byte_fallback", true), ContainsSubstring("byte_fallback"));
  CHECK_THAT(hf_refusal("gpt2", "/model/unk_token", "[UNK]"), ContainsSubstring("'[UNK]'"));
}

TEST_CASE("A damaged tokenizer.json is refused with the damage named") {
  CHECK_THAT(hf_refusal("gpt2", "/model", nullptr), ContainsSubstring("\"model\""));
  CHECK_THAT(hf_refusal("gpt2", "/model/vocab", nullptr), ContainsSubstring("tokenizer.json"));
  CHECK_THAT(hf_refusal("gpt2", "/model/vocab/Ġt", -1), ContainsSubstring("id -1"));
  CHECK_THAT(hf_refusal("gpt2", "/model/vocab/Ġt", "7"), ContainsSubstring("'Ġt'"));
  CHECK_THAT(hf_refusal("gpt2", "/model/vocab/Ġt", 1.5), ContainsSubstring("1.5"));
  CHECK_THAT(hf_refusal("gpt2", "/model/vocab/Ġt", std::int64_t{1} << 40), ContainsSubstring("1099511627776"));
  CHECK_THAT(hf_refusal("gpt2", "/model/vocab/Ġt", 10), ContainsSubstring("token id 10 is both"));
  CHECK_THAT(hf_refusal("gpt2", "/model/merges/0", {"a"}), ContainsSubstring("merge 0"));
  CHECK_THAT(hf_refusal("gpt2", "/model/merges/0", "a b c"), ContainsSubstring("'a b c'"));
  CHECK_THAT(hf_refusal("gpt2", "/model/merges/0", {"a", "nowhere"}), ContainsSubstring("'nowhere'"));
  CHECK_THAT(hf_refusal("gpt2", "/model/merges/0", 5), ContainsSubstring("merge 0"));
  CHECK_THAT(hf_refusal("gpt2", "/added_tokens/0/content", "other"), ContainsSubstring("token id 0 is both"));
  CHECK_THAT(hf_refusal("gpt2", "/added_tokens/0/id", "0"), ContainsSubstring("tokenizer.json"));
  CHECK_THAT(hf_refusal("gpt2", "/pre_tokenizer", "ByteLevel"), ContainsSubstring("pre_tokenizer"));
  // A wrong type is named by its field, not by the library.
  const std::string wrong_type = hf_refusal("gpt2", "/added_tokens/0/special", json::object());
  CHECK_THAT(wrong_type, ContainsSubstring("\"special\" is {}, neither true nor false"));
  CHECK_THAT(wrong_type, !ContainsSubstring("json.exception"));
  CHECK_THAT(refusal([] { load_hf({{"tokenizer.json", "{\"model\":"}}); }), ContainsSubstring("tokenizer.json"));
  CHECK_THAT(refusal([] { load_hf({{"tokenizer.json", "[]"}}); }), ContainsSubstring("\"model\""));
  CHECK_THAT(refusal(
                 [] {
                   load_hf({{"config.json", "{}"}});
                 },
                 ErrorKind::Input),
             ContainsSubstring("no tokenizer.json"));
  CHECK_THAT(refusal(
                 [] {
                   load_hf({{"tokenizer.model", "x"}});
                 },
                 ErrorKind::Input),
             ContainsSubstring("tokenizer.model alone"));
  const TempDir folder;
  write_bytes(folder / "text", "no model");
  CHECK_THAT(refusal([&] { load_tokenizer(folder / "text"); }, ErrorKind::Input),
             ContainsSubstring("neither a GGUF file nor"));
  CHECK_THAT(refusal([&] { load_tokenizer(folder / "missing"); }, ErrorKind::Input), ContainsSubstring("missing"));
}

TEST_CASE("Merges may be written as lines or as pairs") {
  Folder files = hf("gpt2");
  const std::string pairs = load_hf(files)->sha256;
  for (json& merge : files["tokenizer.json"]["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  CHECK(load_hf(files)->sha256 == pairs);
}

TEST_CASE("BOS, EOS and the chat template come from the files beside tokenizer.json") {
  Folder files = hf("gpt2");
  CHECK_FALSE(load_hf(files)->bos_id);
  files["config.json"] = {{"bos_token_id", 1}, {"eos_token_id", {2, 0}}};
  CHECK(load_hf(files)->bos_id == 1);
  CHECK(load_hf(files)->eos_id == 2);
  CHECK_FALSE(load_hf(files)->adds_bos);
  files["special_tokens_map.json"] = {{"bos_token", {{"content", "<|im_end|>"}}}};
  CHECK(load_hf(files)->bos_id == 2);
  files["tokenizer_config.json"] = {{"bos_token", "<|endoftext|>"}, {"eos_token", nullptr}, {"chat_template", "plain"}};
  CHECK(load_hf(files)->bos_id == 0);
  CHECK_FALSE(load_hf(files)->eos_id);
  CHECK(load_hf(files)->chat_template == "plain");
  files["tokenizer_config.json"]["add_bos_token"] = true;
  CHECK(load_hf(files)->adds_bos);
  files["tokenizer_config.json"]["chat_template"] = {{{"name", "tool_use"}, {"template", "t"}},
                                                     {{"name", "default"}, {"template", "d"}}};
  CHECK(load_hf(files)->chat_template == "d");
  files["chat_template.jinja"] = "of its own";
  CHECK(load_hf(files)->chat_template == "of its own");
  files["tokenizer_config.json"]["bos_token"] = "<none>";
  CHECK_THAT(refusal([&] { load_hf(files); }), ContainsSubstring("bos_token '<none>'"));

  files = hf("llama3");
  CHECK(load_hf(files)->adds_bos);
  CHECK(load_hf(files)->bos_id == 1);
  files["tokenizer_config.json"] = {{"add_bos_token", false}};
  CHECK_FALSE(load_hf(files)->adds_bos);
  files["tokenizer_config.json"] = {{"add_prefix_space", true}};
  CHECK_THAT(refusal([&] { load_hf(files); }), ContainsSubstring("add_prefix_space"));
  files["tokenizer_config.json"] = {{"added_tokens_decoder", {{"600", {{"content", "<new>"}, {"special", true}}}}}};
  CHECK(load_hf(files)->encode("<new>") == std::vector<std::int32_t>{600});
  CHECK(load_hf(files)->vocab_size() == 601);
  files["tokenizer_config.json"] = {{"added_tokens_decoder", {{"x", {{"content", "<new>"}}}}}};
  CHECK_THAT(refusal([&] { load_hf(files); }), ContainsSubstring("added_tokens_decoder"));
}
