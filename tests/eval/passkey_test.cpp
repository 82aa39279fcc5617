#include "support/catch.h"
#include "support/fake_model.h"
#include "support/skip.h"
#include "support/test_model.h"

#include <set>

#include <kvq/core/error.h>
#include <kvq/eval/passkey.h>
#include <kvq/eval/plan.h>

using namespace kvq;
using kvq::test::ByteTokenizer;
using kvq::test::FakeModel;

namespace {

const std::string kFiller =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. ";
const std::string kQuestion = "What is the pass key? The pass key is";

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

}  // namespace

TEST_CASE("The passkey prompt is the published one, as long as fits") {
  const ByteTokenizer tokenizer;
  for (std::int64_t length : {420, 1000, 1024, 5003}) {
    for (double depth : {0.05, 0.275, 0.5, 0.725, 0.95}) {
      INFO("length " << length << ", depth " << depth);
      const PasskeyPrompt prompt = make_passkey_prompt(tokenizer, length, depth, false, false, 5);
      CHECK(prompt.ids == tokenizer.encode(prompt.text, true));
      CHECK(static_cast<std::int64_t>(prompt.ids.size()) <= length);
      CHECK(static_cast<std::int64_t>(prompt.ids.size() + kFiller.size()) > length);  // one more would not fit
      CHECK(prompt.text.rfind("There is an important info hidden inside a lot of irrelevant text.", 0) == 0);
      CHECK(prompt.text.substr(prompt.text.size() - kQuestion.size() - 1) == "\n" + kQuestion);
      const std::string needle =
          "\nThe pass key is " + prompt.key + ". Remember it. " + prompt.key + " is the pass key.\n";
      CHECK(count(prompt.text, needle) == 1);
      CHECK(count(prompt.text, prompt.key) == 2);
      // The key stands as deep as asked, to half a filler.
      const int fillers = count(prompt.text, kFiller);
      const int before = count(prompt.text.substr(0, prompt.text.find(needle)), kFiller);
      CHECK(std::abs(before - depth * fillers) <= 0.5);
    }
  }
}

TEST_CASE("Keys have five digits, are fixed by the seed and differ between seeds") {
  const ByteTokenizer tokenizer;
  std::set<std::string> keys;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::string key = make_passkey_prompt(tokenizer, 600, 0.5, false, false, seed).key;
    CHECK(key.size() == 5);
    CHECK(key.find_first_not_of("0123456789") == std::string::npos);
    CHECK(key[0] != '0');
    CHECK(make_passkey_prompt(tokenizer, 600, 0.5, false, false, seed).key == key);
    keys.insert(key);
  }
  CHECK(keys.size() >= 49);
}

TEST_CASE("A BOS token is part of the length") {
  const ByteTokenizer tokenizer;
  const PasskeyPrompt plain = make_passkey_prompt(tokenizer, 1024, 0.5, false, false, 5);
  const auto exact = static_cast<std::int64_t>(plain.ids.size());
  const PasskeyPrompt with = make_passkey_prompt(tokenizer, exact, 0.5, false, true, 5);
  CHECK(with.ids.front() == 256);
  CHECK(count(with.text, kFiller) == count(plain.text, kFiller) - 1);
  CHECK(static_cast<std::int64_t>(make_passkey_prompt(tokenizer, exact + 1, 0.5, false, true, 5).ids.size()) ==
        exact + 1);
}

TEST_CASE("A length that holds no prompt is refused with the shortest one") {
  const ByteTokenizer tokenizer;
  const PasskeyPrompt one_filler = make_passkey_prompt(tokenizer, 420, 0.5, false, false, 1);
  REQUIRE(count(one_filler.text, kFiller) == 1);
  const auto shortest = static_cast<std::int64_t>(one_filler.ids.size());
  CHECK_NOTHROW(make_passkey_prompt(tokenizer, shortest, 0.5, false, false, 1));
  try {
    make_passkey_prompt(tokenizer, shortest - 1, 0.5, false, false, 1);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Usage);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("--lengths " + std::to_string(shortest - 1)) &&
                                              ContainsSubstring(std::to_string(shortest)));
  }
}

TEST_CASE("Every cache answers the same prompts, and the unquantized one as a quantizer answers the same") {
  FakeModel model(257);
  const ByteTokenizer tokenizer;
  auto none = std::make_shared<Quantizer>();
  none->recipe = parse_recipe("none");
  none->shape = model.config().kv;
  none->rope = model.config().rope;
  PasskeyOptions options;
  options.lengths = {500, 700};
  options.depths = {0.1, 0.9};
  options.trials = 2;
  const auto results = evaluate_passkey(model, tokenizer, false, {{"copy", none}}, options, nullptr, quiet_context());
  REQUIRE(results.size() == 2);
  CHECK(results[0].name == "none");
  CHECK(results[1].name == "copy");
  CHECK(results[0].continuations.size() == 8);
  CHECK(results[0].continuations == results[1].continuations);
  for (const std::string& text : results[0].continuations) CHECK(text.size() == 8);  // 8 tokens of a byte
  REQUIRE(results[0].cells.size() == 4);
  CHECK(results[0].cells[1].length == 500);
  CHECK(results[0].cells[1].depth == 0.9);
  CHECK(results[0].cells[2].length == 700);
  for (const PasskeyCell& cell : results[0].cells) {
    CHECK(cell.trials == 2);
    CHECK(cell.found == 0);
    CHECK(cell.prompt_tokens <= cell.length);
    CHECK(cell.prompt_tokens > cell.length - 92);
  }
}

TEST_CASE("The plan of a retrieval counts every prompt and the caches side by side") {
  const FakeModel model(257);
  PasskeyOptions options;
  options.lengths = {500, 1000, 700};
  options.depths = {0.1, 0.9};
  options.trials = 4;
  const GenerationPlan plan = plan_passkey(model.config(), Dtype::Fp32, options, 3);
  CHECK(plan.prompts == 24);
  CHECK(plan.seconds > 0);
  // One more cache: keys and values of two layers of eight channels, and 16 channels of residual stream, at the
  // longest.
  CHECK(plan_passkey(model.config(), Dtype::Fp32, options, 4).peak_memory_bytes - plan.peak_memory_bytes ==
        1000 * (2 * 2 * 8 + 16) * 4);
  options.lengths = {1000};
  CHECK(plan_passkey(model.config(), Dtype::Fp32, options, 3).peak_memory_bytes == plan.peak_memory_bytes);
}

TEST_CASE("A model that repeats the key is seen to find it") {
  // Attention off, and a head that maps each byte to the next digit of a fixed key: only that key is ever found.
  FakeModel model(257);
  const ByteTokenizer tokenizer;
  // The first cell's prompt has this seed; a key with the same digit twice would make the chain below ambiguous.
  std::uint64_t seed = 0;
  std::string key;
  do {
    key = make_passkey_prompt(tokenizer, 500, 0.5, false, false, ++seed * 1000003).key;
  } while (std::set<char>(key.begin(), key.end()).size() != key.size());
  for (auto* weights : {&model.key_weight, &model.value_weight}) {
    for (at::Tensor& weight : *weights) weight.zero_();
  }
  model.embedding.zero_();
  model.head.zero_();
  // One hidden channel per step of the answer, beginning at the prompt's last byte.
  const std::string chain = "s" + key;
  for (std::size_t step = 0; step + 1 < chain.size(); ++step) {
    model.embedding[static_cast<unsigned char>(chain[step])][static_cast<std::int64_t>(step)].fill_(1.0f);
    model.head[static_cast<std::int64_t>(step)][static_cast<unsigned char>(chain[step + 1])].fill_(1.0f);
  }
  PasskeyOptions options;
  options.lengths = {500};
  options.depths = {0.5};
  options.seed = seed;
  const auto results = evaluate_passkey(model, tokenizer, false, {}, options, nullptr, quiet_context());
  CHECK(results[0].cells[0].found == 1);
  CHECK(results[0].continuations[0].substr(0, 5) == key);
  ++options.seed;  // another key: the same answer is wrong now
  CHECK(evaluate_passkey(model, tokenizer, false, {}, options, nullptr, quiet_context())[0].cells[0].found == 0);
}

TEST_CASE("Prompts of SmolLM2 fill the length as the reference's do", "[model]") {
  const auto path = kvq::test::test_model();
  if (!path) KVQ_SKIP("the embedded model is not here");
  const auto tokenizer = load_tokenizer(*path);
  // Of the published prompt's filler SmolLM2 makes 24 tokens or so: the longest prompt leaves less than that free.
  for (std::int64_t length : {1024, 2048, 4096}) {
    const PasskeyPrompt prompt = make_passkey_prompt(*tokenizer, length, 0.5, false, false, 3);
    CHECK(static_cast<std::int64_t>(prompt.ids.size()) <= length);
    CHECK(static_cast<std::int64_t>(prompt.ids.size()) > length - 26);
    const PasskeyPrompt chat = make_passkey_prompt(*tokenizer, length, 0.5, true, false, 3);
    CHECK(static_cast<std::int64_t>(chat.ids.size()) <= length);
    CHECK_THAT(chat.text, ContainsSubstring(kQuestion));
  }
}
