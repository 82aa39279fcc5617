// key_metric and value_metric, and runs without a backward pass.
#include "calib/calib_support.h"

#include <cmath>
#include <fstream>

#include <ATen/ops/randn.h>

#include <nlohmann/json.hpp>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/calib/attention_mass.h>
#include <kvq/calib/key_metric.h>
#include <kvq/calib/value_metric.h>

using namespace kvq;
using namespace kvq::test;

namespace {

template <class Found>
void check_close(const std::vector<Found>& found, const std::vector<double>& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  double largest = 0, worst = 0;
  for (std::size_t index = 0; index < expected.size(); ++index) {
    largest = std::max(largest, std::abs(expected[index]));
    worst = std::max(worst, std::abs(found[index] - expected[index]));
  }
  CHECK(largest > 0);
  CHECK(worst <= tolerance * largest);
}

/// The definition in double: rotations, softmax and outer products one at a time.
std::vector<double> brute_force(const at::Tensor& query, const at::Tensor& key, const RopeParams& params,
                                std::int64_t window, const std::vector<std::int64_t>& tokens) {
  const std::int64_t length = query.size(0), heads = query.size(1), dim = query.size(2), kv_heads = key.size(1);
  const std::vector<double> frequencies = params.inverse_frequencies();
  const auto half = static_cast<std::int64_t>(frequencies.size());
  const auto turn = [&](const float* x, double position) {
    std::vector<double> y(x, x + dim);
    for (std::int64_t pair = 0; pair < half; ++pair) {
      const double angle = position * frequencies[static_cast<std::size_t>(pair)];
      const double a = x[pair], b = x[pair + half];
      y[static_cast<std::size_t>(pair)] = a * std::cos(angle) - b * std::sin(angle);
      y[static_cast<std::size_t>(pair + half)] = a * std::sin(angle) + b * std::cos(angle);
    }
    return y;
  };
  const float *q = query.const_data_ptr<float>(), *k = key.const_data_ptr<float>();
  std::vector<double> metric(static_cast<std::size_t>(kv_heads * dim * dim));
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t kv_head = head / (heads / kv_heads);
    for (std::int64_t p = 0; p < length; ++p) {
      // Scores depend on the distance alone: the query is turned by p - t, the key not at all.
      std::vector<double> weight;
      double total = 0;
      const auto relative = [&](std::int64_t t) {
        return turn(q + (p * heads + head) * dim, static_cast<double>(p - t));
      };
      const std::int64_t begin = window > 0 ? std::max<std::int64_t>(0, p + 1 - window) : 0;
      for (std::int64_t t = begin; t <= p; ++t) {
        const std::vector<double> u = relative(t);
        double score = 0;
        for (std::int64_t c = 0; c < dim; ++c)
          score += u[static_cast<std::size_t>(c)] * k[(t * kv_heads + kv_head) * dim + c];
        total += weight.emplace_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
      }
      for (const std::int64_t t : tokens) {
        if (t > p || t < begin) continue;
        const std::vector<double> u = relative(t);
        const double w = weight[static_cast<std::size_t>(t - begin)] / total, factor = w * w * (1 - w) * (1 - w);
        for (std::int64_t a = 0; a < dim; ++a)
          for (std::int64_t b = 0; b < dim; ++b)
            metric[static_cast<std::size_t>((kv_head * dim + a) * dim + b)] +=
                factor * u[static_cast<std::size_t>(a)] * u[static_cast<std::size_t>(b)];
      }
    }
  }
  return metric;
}

CollectOptions forward_only(const Model& model, const std::filesystem::path& output) {
  CollectOptions options = options_for(model, output);
  options.gradients = false;
  return options;
}

}  // namespace

TEST_CASE("Metrics of the tiny models are those of transformers' projections and weights") {
  KVQ_BOTH_WAYS();
  std::ifstream stream(KVQ_SOURCE_DIR "/tests/golden/query_metric.json");
  for (const nlohmann::json& entry : nlohmann::json::parse(stream)) {
    const std::string name = entry["name"];
    INFO(name);
    set_compute_threads(1);
    const auto model = load_model(KVQ_SOURCE_DIR "/tests/data/tiny/" + name + "/hf", {});
    std::vector<Window> windows;
    for (const nlohmann::json& ids : entry["sequences"]) windows.emplace_back().ids = ids.get<std::vector<int>>();
    TempDir folder;
    for (const bool gradients : {false, true}) {
      CollectOptions options = options_for(*model, folder / (gradients ? "both.h5" : "forward.h5"));
      options.gradients = gradients, options.metrics = true;
      collect(*model, windows, options);
      const CalibrationReader reader(options.output);
      CHECK(reader.header().gradients == gradients);
      CHECK(reader.header().metrics);
      for (int layer = 0; layer < reader.header().shape.layers; ++layer) {
        const nlohmann::json& expected = entry["layers"][static_cast<std::size_t>(layer)];
        check_close(reader.metric(layer, Side::Key), expected["key_metric"], 2e-5);
        check_close(reader.metric(layer, Side::Value), expected["value_metric"], 1e-6);
      }
    }
  }
}

TEST_CASE("The metric of keys equals its definition, with grouped heads, few rotating channels and sharp attention") {
  KVQ_BOTH_WAYS();
  at::manual_seed(5);
  RopeParams rope;
  for (const auto& [heads, kv_heads, rotary, sharpness, window] :
       {std::tuple{4, 4, 16, 1.0, 0}, {6, 2, 16, 4.0, 0}, {3, 1, 8, 2.0, 0}, {6, 2, 16, 4.0, 9}}) {
    rope.rotary_dim = rotary;
    for (const std::int64_t length : {2, 70, 130}) {
      CAPTURE(heads, kv_heads, length, window);
      const at::Tensor query = at::randn({length, heads, 16}).mul(sharpness), key = at::randn({length, kv_heads, 16});
      RopeTable table(rope);
      std::vector<double> log_sums;
      attention_mass(query, key, table, false, window, &log_sums);
      const std::vector<std::int64_t> tokens = metric_tokens(1, length);
      // What is left out weighs less than 2^-16 of the largest, each.
      check_close(key_metric(query, key, rope, table, window, log_sums, tokens),
                  brute_force(query, key, rope, window, tokens), 1e-3);
    }
  }
}

TEST_CASE("The metric of keys is the same with one thread and with three, but for the rounding of products") {
  at::manual_seed(6);
  RopeParams rope;
  rope.rotary_dim = 32;
  const at::Tensor query = at::randn({300, 8, 32}), key = at::randn({300, 2, 32});
  RopeTable table(rope);
  std::vector<double> log_sums, again;
  const std::vector<std::int64_t> tokens = metric_tokens(0, 300);
  set_compute_threads(1);
  attention_mass(query, key, table, false, 0, &log_sums);
  const std::vector<double> one = key_metric(query, key, rope, table, 0, log_sums, tokens);
  set_compute_threads(3);
  attention_mass(query, key, table, false, 0, &again);
  CHECK(again == log_sums);
  // Some BLAS sum in another order where more threads share a product.
  check_close(key_metric(query, key, rope, table, 0, log_sums, tokens), one, 1e-6);
  set_compute_threads(1);
}

TEST_CASE("Tokens of the metric lie at a stride, differ from sequence to sequence and leave the first out") {
  for (const std::int64_t seqlen : {2, 3, 64, 65, 66, 1000, 2048}) {
    CAPTURE(seqlen);
    for (const std::int64_t sequence : {0, 1, 2, 1000000}) {
      const std::vector<std::int64_t> tokens = metric_tokens(sequence, seqlen);
      CHECK(static_cast<std::int64_t>(tokens.size()) == std::min<std::int64_t>(64, seqlen - 1));
      CHECK(tokens.front() >= 1);
      CHECK(tokens.back() < seqlen);
      for (std::size_t index = 1; index < tokens.size(); ++index) CHECK(tokens[index] > tokens[index - 1]);
    }
  }
  CHECK(metric_tokens(0, 2048) != metric_tokens(1, 2048));
  CHECK(metric_tokens(0, 2048).front() == 20);  // 1 + 40503 * 2047 / (64 * 65536)
}

TEST_CASE("Without a backward pass keys, values and attention are what they are with one") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 24);
  const CollectResult with = collect(*model, windows, options_for(*model, folder / "both.h5")),
                      without = collect(*model, windows, forward_only(*model, folder / "forward.h5"));
  CHECK(without.file_bytes < with.file_bytes);
  const CalibrationReader both(folder / "both.h5"), forward(folder / "forward.h5");
  CHECK_FALSE(both.header().metrics);
  CHECK_FALSE(forward.header().gradients);
  for (std::size_t sequence = 0; sequence < 3; ++sequence)
    CHECK(with.loss[sequence] == Approx(without.loss[sequence]).epsilon(1e-6));
  for (int layer = 0; layer < both.header().shape.layers; ++layer) {
    const auto doubles = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
    check_close(forward.values(layer, Side::Key), doubles(both.values(layer, Side::Key)), 1e-3);
    check_close(forward.values(layer, Side::Value), doubles(both.values(layer, Side::Value)), 1e-3);
    check_close(forward.attention_mass(layer), doubles(both.attention_mass(layer)), 1e-5);
    check_close(forward.query_moment(layer), both.query_moment(layer), 1e-5);
  }
}

TEST_CASE("Killed at any step, a run without a backward pass ends with the bytes of an uninterrupted one") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 16);
  AtStep counter(-1, [] {});
  collect(*model, windows, forward_only(*model, folder / "whole.h5"), counter);
  const std::string whole = read_bytes(folder / "whole.h5");
  REQUIRE(counter.done() == 4 * model->config().kv.layers);  // three sequences and the assembly
  const CollectOptions options = forward_only(*model, folder / "killed.h5");
  for (std::int64_t step = 1; step <= counter.done(); ++step) {
    CHECK(in_child([&] {
            AtStep kill(step, [] { ::raise(SIGKILL); });
            collect(*model, windows, options, kill);
          }) == -SIGKILL);
    const CollectResult result = collect(*model, windows, options);
    CHECK(result.resumed == std::min<std::int64_t>(3, (step - 1) / model->config().kv.layers));
    CHECK(read_bytes(options.output) == whole);
    CHECK(entries(folder.path()) == 2);
    std::filesystem::remove(options.output);
  }
}

TEST_CASE("A journal of a run with gradients is refused by one without") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  in_child([&] {
    AtStep kill(2 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
    collect(*model, windows, options_for(*model, folder / "x.h5"), kill);
  });
  CHECK_THROWS_WITH(collect(*model, windows, forward_only(*model, folder / "x.h5")),
                    ContainsSubstring("gradients") && ContainsSubstring("--force"));
}

TEST_CASE("A plan without a backward pass is smaller and shorter, and its journal is as planned") {
  TempDir folder;
  const auto model = tiny_model();
  const ModelConfig& config = model->config();
  const CollectPlan both = plan_collection(config, Dtype::Fp32, 2, 16, Recompute::Auto),
                    forward = plan_collection(config, Dtype::Fp32, 2, 16, Recompute::Auto, QueryHeads::Joint, false);
  CHECK(forward.journal_bytes < both.journal_bytes);
  CHECK(forward.peak_memory_bytes <= both.peak_memory_bytes);
  const SequenceLayout layout{config.kv, 16, false, true};
  CHECK(forward.journal_bytes == 2 * layout.file_bytes());
  const std::vector<Window> windows = random_windows(*model, 2, 16);
  std::uintmax_t found = 0;
  AtStep look(config.kv.layers + 1, [&] {
    for (const auto& entry : std::filesystem::directory_iterator(Journal::folder_of(folder / "x.h5")))
      if (entry.path().filename() == "sequence-000000") found = entry.file_size();
  });
  collect(*model, windows, forward_only(*model, folder / "x.h5"), look);
  CHECK(found == static_cast<std::uintmax_t>(layout.file_bytes()));
}
