// Ids against those of Hugging Face's tokenizers (and sentencepiece): the fixtures of
// scripts/reference/make_tokenizers.py for every kind, and token_ids.json of the shared data for SmolLM2's own
// tokenizer on real texts.

#include <bit>
#include <fstream>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "support/catch.h"
#include "support/shared_data.h"
#include "support/skip.h"
#include "support/temp_dir.h"
#include "support/test_model.h"

#include <kvq/core/hash.h>
#include <kvq/text/corpus.h>
#include <kvq/text/tokenizer.h>

using namespace kvq;
using namespace kvq::test;

namespace fs = std::filesystem;

namespace {

const fs::path kFixtures = fs::path(KVQ_SOURCE_DIR) / "tests/golden/tokenizers";

std::unique_ptr<Tokenizer> load_hf(const fs::path& tokenizer_json) {
  const TempDir folder;
  fs::copy_file(tokenizer_json, folder / "tokenizer.json");
  return load_tokenizer(folder.path());
}

nlohmann::json read_json(const fs::path& path) { return nlohmann::json::parse(std::ifstream(path)); }

std::string sha256_of_ids(const std::vector<std::int32_t>& ids) {
  static_assert(std::endian::native == std::endian::little);
  Sha256 hash;
  hash.update(std::as_bytes(std::span(ids)));
  return hash.finish();
}

bool has_special(const std::string& text) {
  for (const char* token :
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", "<unk>", "<s>", "</s>", "<bos>", "<eos>", "<pad>"}) {
    if (text.find(token) != std::string::npos) return true;
  }
  return false;
}

void check_cases(const Tokenizer& tokenizer, const nlohmann::json& fixture) {
  REQUIRE(fixture["cases"].size() > 200);
  for (const auto& entry : fixture["cases"]) {
    const auto text = entry["text"].get<std::string>();
    const auto expected = entry["ids"].get<std::vector<std::int32_t>>();
    CAPTURE(text);
    CHECK(tokenizer.encode(text) == expected);
    if (!has_special(text)) CHECK(tokenizer.encode(text, false) == expected);
  }
}

}  // namespace

TEST_CASE("Every kind of tokenizer gives Hugging Face's ids, from GGUF and from tokenizer.json") {
  for (const std::string kind : {"gpt2", "smollm", "llama3", "qwen2", "sentencepiece", "gemma"}) {
    CAPTURE(kind);
    const nlohmann::json fixture = read_json(kFixtures / (kind + ".json"));
    const auto gguf = load_tokenizer(kFixtures / (kind + ".gguf"));
    const auto hf = load_hf(kFixtures / (kind + ".tokenizer.json"));
    check_cases(*gguf, fixture);
    check_cases(*hf, fixture);
    CHECK(gguf->sha256 == hf->sha256);
    CHECK(gguf->vocab_size() == hf->vocab_size());
    CHECK(gguf->bos_id == fixture["bos"].get<int>());
    CHECK(gguf->adds_bos == fixture["adds_bos"].get<bool>());
    CHECK(hf->adds_bos == fixture["adds_bos"].get<bool>());
    if (hf->adds_bos) CHECK(hf->bos_id == gguf->bos_id);
  }
}

TEST_CASE("Settings beyond the usual ones give Hugging Face's ids, too") {
  const nlohmann::json variants = read_json(kFixtures / "variants.json");
  REQUIRE(variants.size() >= 15);
  for (const auto& variant : variants) {
    CAPTURE(variant["name"]);
    nlohmann::json document = read_json(kFixtures / (variant["base"].get<std::string>() + ".tokenizer.json"));
    for (const auto& [pointer, value] : variant["replace"].items())
      document[nlohmann::json::json_pointer(pointer)] = value;
    const TempDir folder;
    write_bytes(folder / "tokenizer.json", document.dump());
    const auto tokenizer = load_tokenizer(folder.path());
    for (const auto& entry : variant["cases"]) {
      CAPTURE(entry["text"]);
      CHECK(tokenizer->encode(entry["text"].get<std::string>()) == entry["ids"].get<std::vector<std::int32_t>>());
    }
  }
}

TEST_CASE("Decoding gives the text back") {
  for (const std::string kind : {"gpt2", "smollm", "llama3", "qwen2", "sentencepiece", "gemma"}) {
    CAPTURE(kind);
    const nlohmann::json fixture = read_json(kFixtures / (kind + ".json"));
    const bool sentencepiece = kind == "sentencepiece";
    for (const auto& tokenizer :
         {load_tokenizer(kFixtures / (kind + ".gguf")), load_hf(kFixtures / (kind + ".tokenizer.json"))}) {
      int checked = 0;
      for (const auto& entry : fixture["cases"]) {
        const auto text = entry["text"].get<std::string>();
        // SentencePiece puts a blank before every stretch of text, and cannot tell its mark from a blank.
        if (kind == "gemma" && text.find("▁") != std::string::npos) continue;
        if (sentencepiece && (has_special(text) || text.find("▁") != std::string::npos)) continue;
        const auto ids = tokenizer->encode(text);
        const auto decoded = tokenizer->decode(ids);
        CAPTURE(text, decoded);
        if (kind != "qwen2") {
          CHECK(decoded == text);
        } else {  // composed characters come back, which encode to the same ids
          CHECK(tokenizer->encode(decoded) == ids);
        }
        ++checked;
      }
      CHECK(checked > 200);
    }
  }
}

TEST_CASE("A megabyte without a break is encoded and decoded") {
  for (const std::string kind : {"smollm", "llama3", "sentencepiece"}) {
    const auto tokenizer = load_tokenizer(kFixtures / (kind + ".gguf"));
    for (const std::string unit : {"a", " ", "\n", "海", "<"}) {
      CAPTURE(kind, unit);
      std::string text;
      while (text.size() < 1'000'000) text += unit;
      text += 'x';
      CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    }
  }
}

TEST_CASE("SmolLM2's ids on real texts equal Hugging Face's, from the real GGUF", "[model]") {
  const auto model = test_model();
  const auto reference = shared_data("reference/token_ids.json");
  if (!model) KVQ_SKIP("the model is not there; set KVQ_TEST_MODEL");
  if (!reference) KVQ_SKIP("the shared data is not there; set KVQ_SHARED_DATA");
  const auto gguf = load_tokenizer(*model);
  const auto hf = load_hf(*shared_data("reference/tokenizer_smollm_exact.json"));
  CHECK(gguf->sha256 == hf->sha256);
  CHECK(gguf->vocab_size() == 49152);
  CHECK(gguf->bos_id == 1);
  CHECK(gguf->eos_id == 2);
  CHECK_FALSE(gguf->adds_bos);
  const nlohmann::json all_expected = read_json(*reference);
  REQUIRE(all_expected.size() == 6);
  for (const auto& [name, expected] : all_expected.items()) {
    CAPTURE(name);
    const TextFile file = read_text(TextArgument::parse(shared_data(name)->string()));
    for (const Tokenizer* tokenizer : {gguf.get(), hf.get()}) {
      const auto ids = tokenize(*tokenizer, file).ids;
      CHECK(ids.size() == expected["tokens"].get<std::size_t>());
      CHECK(sha256_of_ids(ids) == expected["sha256_of_int32le_ids"].get<std::string>());
      CHECK(tokenizer->decode(ids) == file.text);
    }
  }
}
