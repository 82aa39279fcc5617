#include "support/both_ways.h"
#include "support/catch.h"
#include "support/fake_model.h"
#include "support/temp_dir.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/eval/comparison.h>
#include <kvq/eval/perplexity.h>
#include <kvq/model/loss.h>
#include <kvq/model/rope.h>
#include <kvq/quant/footprint.h>

using namespace kvq;
using kvq::test::FakeModel;
using kvq::test::TempDir;
namespace fs = std::filesystem;

namespace {

/// A quantizer that needs no calibration: keys and values per token with the token's own range.
NamedQuantizer per_token(const KvShape& shape, const RopeParams& rope, const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = shape;
  quantizer->rope = rope;
  for (int layer = 0; layer < shape.layers && quantizer->recipe.quantized; ++layer) {
    LayerQuantizer sides;
    for (Side side : kSides) {
      const SideRecipe& wanted = quantizer->recipe.side(side);
      sides.side(side) = {.recipe = wanted,
                          .kv_heads = shape.kv_heads,
                          .head_dim = shape.head_dim,
                          .codebooks = {uniform_codebook(wanted.bits)}};
    }
    quantizer->layers.push_back(std::move(sides));
  }
  return {recipe, quantizer};
}

std::vector<Window> random_windows(int count, int tokens, int vocab) {
  Rng rng(11);
  std::vector<Window> windows(count);
  for (Window& window : windows) {
    for (int token = 0; token < tokens; ++token) window.ids.push_back(static_cast<std::int32_t>(rng.below(vocab)));
  }
  return windows;
}

const std::string kInt2 = "int2:key=token", kInt4 = "int4:key=token";

void check_same_numbers(const PerplexityReport& a, const PerplexityReport& b) {
  REQUIRE(a.results.size() == b.results.size());
  for (std::size_t variant = 0; variant < a.results.size(); ++variant) {
    const VariantResult &x = a.results[variant], &y = b.results[variant];
    CHECK(x.name == y.name);
    CHECK(x.window_nll == y.window_nll);
    CHECK(x.delta_nll == y.delta_nll);
    CHECK(x.delta_nll_se == y.delta_nll_se);
    CHECK(x.kl_mean == y.kl_mean);
    CHECK(x.kl_p99 == y.kl_p99);
    CHECK(x.top1 == y.top1);
    CHECK(x.cache_bytes == y.cache_bytes);
  }
}

/// Cancels after so many steps.
struct CancelAfter final : Progress {
  CancelToken token;
  int steps_left;
  explicit CancelAfter(int steps) : steps_left(steps) {}
  void begin(const std::string&, std::int64_t) override {}
  void advance(std::int64_t steps) override {
    steps_left -= static_cast<int>(steps);
    if (steps_left <= 0) token.cancel();
  }
  void end() override {}
};

}  // namespace

TEST_CASE("Means, paired errors and percentiles equal those of the windows one by one") {
  KVQ_BOTH_WAYS();
  FakeModel model;
  const auto windows = random_windows(6, 40, 24);
  const std::vector<NamedQuantizer> quantizers = {per_token(model.config().kv, model.config().rope, kInt4),
                                                  per_token(model.config().kv, model.config().rope, kInt2)};
  const PerplexityReport report = evaluate_perplexity(model, windows, quantizers, nullptr, quiet_context());
  REQUIRE(report.results.size() == 3);
  CHECK(report.results[0].name == "none");
  CHECK(report.results[2].name == kInt2);
  CHECK(report.windows == 6);
  CHECK(report.seqlen == 40);
  CHECK(report.resumed == 0);
  CHECK(report.results[0].delta_nll == 0);
  CHECK(report.results[0].kl_mean == 0);
  CHECK(report.results[0].top1 == 1);

  // Everything once more, window by window, with plain loops over what compare_window gives.
  std::vector<std::vector<double>> nll(3), kl(3);
  std::vector<std::vector<float>> all_kl(3);
  std::vector<double> same(3, 0);
  for (const Window& window : windows) {
    std::vector<at::Tensor> hidden;
    for (std::size_t variant = 0; variant < 3; ++variant) {
      ExactAttention exact(model.config().kv, model.config().rope);
      std::unique_ptr<SimulatedCache> simulated;
      if (variant > 0) simulated = std::make_unique<SimulatedCache>(quantizers[variant - 1].quantizer, 1);
      at::Tensor state = model.embed(window.ids);
      for (int layer = 0; layer < 2; ++layer) {
        state = model.layer_forward(layer, state, 0, variant == 0 ? static_cast<AttentionBackend&>(exact) : *simulated,
                                    nullptr);
      }
      hidden.push_back(state);
    }
    const auto compared = compare_window(model, hidden, window.ids);
    for (std::size_t variant = 0; variant < 3; ++variant) {
      nll[variant].push_back(compared[variant].nll);
      double sum = 0;
      for (float value : compared[variant].kl) {
        sum += value;
        all_kl[variant].push_back(value);
      }
      kl[variant].push_back(sum / 39);
      same[variant] += static_cast<double>(compared[variant].same_top1);
    }
  }
  for (std::size_t variant = 1; variant < 3; ++variant) {
    INFO(report.results[variant].name);
    const VariantResult& result = report.results[variant];
    CHECK(result.window_nll == nll[variant]);
    double delta = 0, divergence = 0, squares = 0, mean_nll = 0;
    for (int window = 0; window < 6; ++window) {
      delta += (nll[variant][window] - nll[0][window]) / 6;
      divergence += kl[variant][window] / 6;
      mean_nll += nll[variant][window] / 6;
    }
    for (int window = 0; window < 6; ++window) squares += std::pow(nll[variant][window] - nll[0][window] - delta, 2);
    CHECK(result.nll == Approx(mean_nll).epsilon(1e-12));
    CHECK(result.ppl == Approx(std::exp(mean_nll)).epsilon(1e-12));
    CHECK(result.delta_nll == Approx(delta).margin(1e-12));
    REQUIRE(result.delta_nll_se.has_value());
    CHECK(*result.delta_nll_se == Approx(std::sqrt(squares / 5 / 6)).epsilon(1e-9));
    CHECK(result.kl_mean == Approx(divergence).epsilon(1e-9));
    CHECK(result.top1 == Approx(same[variant] / (6 * 39)));
    // numpy's percentile(…, 99): linear between the two neighbours.
    std::sort(all_kl[variant].begin(), all_kl[variant].end());
    const double place = 0.99 * (6 * 39 - 1);
    const auto below = static_cast<std::size_t>(place);
    const double p99 = all_kl[variant][below] +
                       (place - static_cast<double>(below)) * (all_kl[variant][below + 1] - all_kl[variant][below]);
    CHECK(result.kl_p99 == Approx(p99).epsilon(1e-5));
  }
  CHECK(report.results[2].kl_mean > report.results[1].kl_mean);
}

TEST_CASE("Standard errors are absent below five windows") {
  FakeModel model;
  const std::vector<NamedQuantizer> quantizers = {per_token(model.config().kv, model.config().rope, kInt4)};
  const auto with = [&](int windows) {
    return evaluate_perplexity(model, random_windows(windows, 12, 24), quantizers, nullptr, quiet_context()).results[1];
  };
  CHECK_FALSE(with(4).delta_nll_se.has_value());
  CHECK_FALSE(with(4).kl_mean_se.has_value());
  CHECK(with(5).delta_nll_se.has_value());
}

TEST_CASE("Counted bits follow from the bytes that the cache occupies") {
  FakeModel model;
  const KvShape& shape = model.config().kv;
  const NamedQuantizer quantizer = per_token(shape, model.config().rope, kInt4);
  const auto report = evaluate_perplexity(model, random_windows(2, 40, 24), {quantizer}, nullptr, quiet_context());
  const VariantResult& baseline = report.results[0];
  CHECK(baseline.cache_bytes == 2 * 40 * 2 * 8 * 2);  // K and V, tokens, layers, width, fp16
  CHECK(baseline.bits_counted == 16);
  const VariantResult& result = report.results[1];
  CHECK(result.bits_nominal == 4);
  const std::vector<std::uint32_t> none_seen(80, 0);
  CHECK(result.cache_bytes == measured_footprint(*quantizer.quantizer, 40, {none_seen, none_seen}).total());
  CHECK(result.bits_counted == Approx(8.0 * static_cast<double>(result.cache_bytes) / (2 * 40 * 2 * 8)));
  CHECK(result.bits_counted > 4);
  CHECK(result.bits_counted_32k < result.bits_counted);
  CHECK(result.table_bytes == table_bytes(*quantizer.quantizer));
}

TEST_CASE("The unquantized recipe as a quantizer changes nothing") {
  FakeModel model;
  const auto report =
      evaluate_perplexity(model, random_windows(2, 30, 24), {per_token(model.config().kv, model.config().rope, "none")},
                          nullptr, quiet_context());
  CHECK(report.results[1].window_nll == report.results[0].window_nll);
  CHECK(report.results[1].kl_mean == 0);
  CHECK(report.results[1].bits_counted == 16);
}

TEST_CASE("A resumed evaluation gives the numbers of an uninterrupted one") {
  FakeModel model;
  const auto windows = random_windows(5, 20, 24);
  const std::vector<NamedQuantizer> quantizers = {per_token(model.config().kv, model.config().rope, kInt2)};
  const PerplexityReport whole = evaluate_perplexity(model, windows, quantizers, nullptr, quiet_context());

  TempDir dir;
  const WindowJournal journal(dir / "journal", RunIdentity{{{"name", "x"}}}, false);
  // 2 layers × 2 caches are 4 steps a window: two windows are finished, the third is interrupted.
  CancelAfter cancelling(10);
  RunContext context{quiet_context().log, cancelling, cancelling.token, 2};
  try {
    evaluate_perplexity(model, windows, quantizers, &journal, context);
    FAIL("was not interrupted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Interrupted);
  }
  model.layer_calls = 0;
  const PerplexityReport resumed = evaluate_perplexity(model, windows, quantizers, &journal, quiet_context());
  CHECK(resumed.resumed == 2);
  CHECK(model.layer_calls == 3 * 4 + 2);
  check_same_numbers(resumed, whole);

  const PerplexityReport again = evaluate_perplexity(model, windows, quantizers, &journal, quiet_context());
  CHECK(again.resumed == 5);
  CHECK(model.layer_calls == 3 * 4 + 2 + 2);
  check_same_numbers(again, whole);
}

TEST_CASE("A quantizer of another shape is refused with both shapes") {
  FakeModel model;
  KvShape other = model.config().kv;
  other.layers = 3;
  try {
    evaluate_perplexity(model, random_windows(1, 10, 24), {per_token(other, model.config().rope, kInt4)}, nullptr,
                        quiet_context());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Mismatch);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("3 layers") && ContainsSubstring("has 2"));
  }
}

TEST_CASE("A quantizer of another rotary embedding is refused with both") {
  FakeModel model;
  RopeParams other = model.config().rope;
  other.theta = 12345.0;
  try {
    evaluate_perplexity(model, random_windows(1, 10, 24), {per_token(model.config().kv, other, kInt4)}, nullptr,
                        quiet_context());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Mismatch);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("theta 12345") && ContainsSubstring("theta 10000"));
  }
}

TEST_CASE("A quantizer for local layers is refused by a model without them") {
  FakeModel model;
  NamedQuantizer named = per_token(model.config().kv, model.config().rope, kInt4);
  auto local = std::make_shared<Quantizer>(*named.quantizer);
  local->rope.local = {.theta = 500.0, .rotary_dim = 4};
  local->rope.window = 9;
  local->rope.is_local = {0, 1};
  named.quantizer = local;
  try {
    evaluate_perplexity(model, random_windows(1, 10, 24), {named}, nullptr, quiet_context());
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Mismatch);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("in layers 1") && ContainsSubstring("windows of 9 tokens"));
  }
}

TEST_CASE("NaN in the weights stops the run in every cache") {
  FakeModel model;
  model.value_weight[1][0][0].fill_(std::nanf(""));
  for (const std::vector<NamedQuantizer>& quantizers :
       {std::vector<NamedQuantizer>{},
        std::vector<NamedQuantizer>{per_token(model.config().kv, model.config().rope, kInt4)}}) {
    try {
      evaluate_perplexity(model, random_windows(1, 10, 24), quantizers, nullptr, quiet_context());
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Numeric);
    }
  }
}

TEST_CASE("The baseline's loss of the tiny models equals transformers'") {
  KVQ_BOTH_WAYS();
  for (const char* name : {"mha-tied", "gqa-untied", "gqa-bias", "mqa", "headdim", "mistral"}) {
    INFO(name);
    const fs::path source = KVQ_SOURCE_DIR;
    std::ifstream file(source / "tests/golden" / ("tiny_" + std::string(name) + ".json"));
    const auto golden = nlohmann::json::parse(file);
    const auto model = load_model(source / "tests/data/tiny" / name / "model.gguf", {});
    Window window;
    window.ids = golden["ids"].get<std::vector<std::int32_t>>();
    const auto report = evaluate_perplexity(*model, {window, window},
                                            {per_token(model->config().kv, model->config().rope, "int8:key=token")},
                                            nullptr, quiet_context());
    CHECK(report.results[0].nll == Approx(golden["loss"].get<double>()).epsilon(2e-6));
    CHECK(report.results[0].window_nll[0] == report.results[0].window_nll[1]);
    CHECK(report.results[1].kl_mean > 0);
    CHECK(report.results[1].kl_mean < 1e-2);
  }
}

TEST_CASE("Means by position: half octaves that cover every prediction once, and add up to the mean") {
  const auto edges = position_edges_of(2047);
  CHECK(edges.front() == 0);
  CHECK(edges.back() == 2047);
  CHECK(std::is_sorted(edges.begin(), edges.end()));
  CHECK(std::adjacent_find(edges.begin(), edges.end()) == edges.end());
  CHECK((position_edges_of(1) == std::vector<std::int64_t>{0, 1}));
  CHECK((position_edges_of(10) == std::vector<std::int64_t>{0, 1, 2, 3, 4, 6, 8, 10}));

  FakeModel model;
  const auto windows = random_windows(3, 40, 24);
  const PerplexityReport report = evaluate_perplexity(
      model, windows, {per_token(model.config().kv, model.config().rope, kInt2)}, nullptr, quiet_context());
  for (const VariantResult& result : report.results) {
    REQUIRE(result.position_nll.size() + 1 == report.position_edges.size());
    double nll = 0, kl = 0;
    for (std::size_t interval = 0; interval < result.position_nll.size(); ++interval) {
      const auto tokens = static_cast<double>(report.position_edges[interval + 1] - report.position_edges[interval]);
      nll += result.position_nll[interval] * tokens / 39;
      kl += result.position_kl[interval] * tokens / 39;
    }
    CHECK(nll == Approx(result.nll).epsilon(1e-6));
    CHECK(kl == Approx(result.kl_mean).epsilon(1e-6).margin(1e-9));
  }
}

TEST_CASE("One layer or side quantized by itself is no cache, and all parts together are the whole") {
  FakeModel model;
  const auto windows = random_windows(2, 30, 24);
  NamedQuantizer whole = per_token(model.config().kv, model.config().rope, kInt2), all = whole, first = whole,
                 last = whole, none = whole;
  all.parts.layers = {0, 1};
  first.parts = {{0}, Side::Key};
  last.parts = {{1}, std::nullopt};
  const PerplexityReport report =
      evaluate_perplexity(model, windows, {whole, all, first, last}, nullptr, quiet_context());
  CHECK(report.results[1].window_nll == report.results[2].window_nll);
  CHECK(report.results[1].counted);
  for (std::size_t part = 2; part < 5; ++part) CHECK_FALSE(report.results[part].counted);
  for (std::size_t part = 3; part < 5; ++part) {
    CHECK(report.results[part].kl_mean > 0);
    CHECK(report.results[part].window_nll != report.results[1].window_nll);
  }
  // What a shared beginning saves changes nothing: a run of the last layer alone, without the others beside it.
  const PerplexityReport alone = evaluate_perplexity(model, windows, {last}, nullptr, quiet_context());
  CHECK(alone.results[1].window_nll == report.results[4].window_nll);
}

TEST_CASE("Judging from a position on leaves out what comes before, for all caches alike") {
  FakeModel model;
  const auto windows = random_windows(5, 40, 24);
  const std::vector<NamedQuantizer> quantizers = {per_token(model.config().kv, model.config().rope, kInt2)};
  const PerplexityReport all = evaluate_perplexity(model, windows, quantizers, nullptr, quiet_context());
  const PerplexityReport part = evaluate_perplexity(model, windows, quantizers, nullptr, quiet_context(), {0, 17});
  CHECK(all.span.from == 0);
  CHECK(part.span.from == 17);
  CHECK(part.position_edges.front() == 17);
  CHECK(part.position_edges.back() == 39);
  CHECK(part.results[1].cache_bytes == all.results[1].cache_bytes);
  for (std::size_t variant = 0; variant < 2; ++variant) {
    // What is left out: the mean over its 17 predictions, from comparisons of the same windows cut short.
    std::vector<Window> short_windows = windows;
    for (Window& window : short_windows) window.ids.resize(18);
    const PerplexityReport before = evaluate_perplexity(model, short_windows, quantizers, nullptr, quiet_context());
    CHECK(39 * all.results[variant].nll == Approx(17 * before.results[variant].nll + 22 * part.results[variant].nll));
    CHECK(39 * all.results[variant].kl_mean ==
          Approx(17 * before.results[variant].kl_mean + 22 * part.results[variant].kl_mean));
    double sum = 0;
    for (std::size_t interval = 0; interval + 1 < part.position_edges.size(); ++interval)
      sum += part.results[variant].position_nll[interval] *
             static_cast<double>(part.position_edges[interval + 1] - part.position_edges[interval]);
    CHECK(sum == Approx(22 * part.results[variant].nll));
  }
}

TEST_CASE(
    "Caches that evict: all of the budget is no damage, less of it more; only what follows the prompt is touched") {
  FakeModel model;
  const auto windows = random_windows(5, 80, 24);
  const auto named = [&](const std::string& recipe) {
    return per_token(model.config().kv, model.config().rope, recipe);
  };
  for (const std::string rule : {"first-recent", "h2o", "snapkv", "pyramidkv"}) {
    INFO(rule);
    const std::string prompt_words = rule == "snapkv" || rule == "pyramidkv" ? ",observe=4,kernel=3" : "";
    const auto budget = [&](const std::string& text) {
      return named("none:evict=" + rule + ",budget=" + text + prompt_words);
    };
    const std::vector<NamedQuantizer> quantizers = {
        budget("100%"), budget("50%"), budget("15%"),
        named("int4:key=token,evict=" + rule + ",budget=100%" + prompt_words), named(kInt4)};
    const PerplexityReport report = evaluate_perplexity(model, windows, quantizers, nullptr, quiet_context(), {40, 40});
    CHECK(report.results[1].nll == Approx(report.results[0].nll).margin(1e-6));
    CHECK(report.results[1].kl_mean < 1e-7);  // fp32 sums in another order
    CHECK(report.results[4].nll == Approx(report.results[5].nll).margin(1e-6));
    CHECK(report.results[2].kl_mean > 1e-6);
    CHECK(report.results[3].kl_mean > report.results[2].kl_mean);
    CHECK(report.results[3].bits_counted < report.results[2].bits_counted);
    CHECK(report.results[2].bits_counted < report.results[1].bits_counted);
    CHECK(report.results[2].bits_counted_32k < 12.1);  // heads of 4 channels: h2o lists 8 bytes for 16
    const bool at_prompt_end = !prompt_words.empty();
    const JudgedSpan usual = usual_span(quantizers, 80);
    CHECK(usual.prompt == (at_prompt_end ? 40 : 0));
    CHECK(usual.from == usual.prompt);
    if (!at_prompt_end) continue;
    // Up to the prompt's end nothing has happened.
    std::vector<Window> prompts = windows;
    for (Window& window : prompts) window.ids.resize(41);
    const PerplexityReport before = evaluate_perplexity(model, prompts, quantizers, nullptr, quiet_context(), {40, 0});
    CHECK(before.results[3].kl_mean < 1e-9);
  }
}
