// Continuations side by side, against each cache by itself and against divergences computed over the whole text at
// once.
#include <algorithm>
#include <cmath>

#include "support/catch.h"
#include "support/fake_model.h"

#include <kvq/eval/generation.h>
#include <kvq/eval/side_by_side.h>
#include <kvq/model/rope.h>

using namespace kvq;
using kvq::test::ByteTokenizer;
using kvq::test::FakeModel;
using kvq::test::random_tensor;

namespace {

constexpr int kNewTokens = 24;
const std::vector<std::int32_t> kPrompt = {72, 101, 108, 108, 111};

std::shared_ptr<FakeModel> disturbed(float by) {
  auto model = std::make_shared<FakeModel>(128);
  model->head.add_(random_tensor({16, 128}, by, 99));
  return model;
}

NamedQuantizer row(const std::string& name, const Model& model, std::shared_ptr<Model> other) {
  auto none = std::make_shared<Quantizer>();
  none->recipe = parse_recipe("none");
  none->shape = model.config().kv;
  none->rope = model.config().rope;
  NamedQuantizer result{name, none};
  result.model = std::move(other);
  return result;
}

std::vector<std::int32_t> alone(Model& model, const Tokenizer& tokenizer) {
  ExactAttention exact(model.config().kv, model.config().rope);
  return greedy_continuation(model, tokenizer, kPrompt, exact, kNewTokens, quiet_context());
}

/// Probabilities after the whole of `ids`, by hand.
std::vector<double> next_probabilities(Model& model, const std::vector<std::int32_t>& ids) {
  ExactAttention exact(model.config().kv, model.config().rope);
  at::Tensor hidden = model.embed(ids);
  for (int layer = 0; layer < model.config().kv.layers; ++layer)
    hidden = model.layer_forward(layer, hidden, 0, exact, nullptr);
  const at::Tensor logits = model.logits(hidden.narrow(0, hidden.size(0) - 1, 1)).contiguous();
  std::vector<double> p(logits.const_data_ptr<float>(), logits.const_data_ptr<float>() + logits.numel());
  const double top = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value - top);
  for (double& value : p) value /= sum;
  return p;
}

double kl(const std::vector<double>& p, const std::vector<double>& q) {
  double sum = 0;
  for (std::size_t index = 0; index < p.size(); ++index) sum += p[index] * std::log(p[index] / q[index]);
  return sum;
}

}  // namespace

TEST_CASE("Side by side, every cache writes what it writes alone, and parts where the texts differ") {
  FakeModel model(128);
  const auto other = disturbed(0.02f), far = disturbed(0.5f);
  const ByteTokenizer tokenizer;
  const std::vector<Continuation> texts = continue_side_by_side(
      model, tokenizer, kPrompt, {row("copy", model, nullptr), row("near", model, other), row("far", model, far)},
      kNewTokens, quiet_context());
  REQUIRE(texts.size() == 4);
  CHECK(texts[0].name == "none");
  CHECK(texts[0].ids == alone(model, tokenizer));
  CHECK(texts[1].ids == texts[0].ids);
  CHECK_FALSE(texts[1].parts_at);
  CHECK(std::abs(texts[1].kl_mean) < 1e-12);
  int parted = 0;
  for (const int index : {2, 3}) {
    FakeModel& its_own = index == 2 ? *other : *far;
    const Continuation& text = texts[static_cast<std::size_t>(index)];
    CHECK(text.ids == alone(its_own, tokenizer));
    const auto differ = std::mismatch(text.ids.begin(), text.ids.end(), texts[0].ids.begin());
    const auto shared = differ.first - text.ids.begin();
    REQUIRE(text.parts_at.has_value() == (shared < kNewTokens));
    double sum = 0, last = 0;
    std::vector<std::int32_t> read = kPrompt;
    for (std::int64_t step = 0; step <= std::min<std::int64_t>(shared, kNewTokens - 1); ++step) {
      last = kl(next_probabilities(model, read), next_probabilities(its_own, read));
      sum += last;
      read.push_back(texts[0].ids[static_cast<std::size_t>(step)]);
    }
    const auto compared = static_cast<double>(std::min<std::int64_t>(shared + 1, kNewTokens));
    CHECK(text.kl_mean == Approx(sum / compared).epsilon(1e-4));
    if (!text.parts_at) continue;
    ++parted;
    CHECK(*text.parts_at == shared);
    CHECK(text.kl_at_parting == Approx(last).epsilon(1e-4));
    const std::string marked = marked_text(tokenizer, text, "#!#");
    CHECK(marked == text.text.substr(0, static_cast<std::size_t>(shared)) + "#!#" +
                        text.text.substr(static_cast<std::size_t>(shared)));
  }
  CHECK(parted > 0);
  CHECK(marked_text(tokenizer, texts[1], "#!#") == texts[1].text);
}

TEST_CASE("The end of a text is a token like others: who does not end there has parted, and goes on") {
  FakeModel model(128);
  const auto far = disturbed(0.5f);
  ByteTokenizer tokenizer;
  const std::vector<std::int32_t> free_text = alone(model, tokenizer);
  // The first token that has not come before.
  auto end = free_text.begin() + 1;
  while (end != free_text.end() && std::find(free_text.begin(), end, *end) != end) ++end;
  REQUIRE(end != free_text.end());
  tokenizer.eos_id = *end;
  const std::vector<Continuation> texts = continue_side_by_side(
      model, tokenizer, kPrompt, {row("copy", model, nullptr), row("far", model, far)}, kNewTokens, quiet_context());
  CHECK(texts[0].ended);
  CHECK(texts[0].ids == std::vector<std::int32_t>(free_text.begin(), end));
  CHECK(texts[1].ended);
  CHECK_FALSE(texts[1].parts_at);
  CHECK(texts[2].ids == alone(*far, tokenizer));
  REQUIRE(texts[2].parts_at);
  CHECK(*texts[2].parts_at <= static_cast<std::int64_t>(texts[0].ids.size()));
}
