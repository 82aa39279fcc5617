#include "calib/calib_support.h"

#include <cmath>

#include <ATen/ops/from_blob.h>

#include <kvq/artifacts/calibration_file.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Over query heads: root mean square and maximum of the parts, in units of the sum of equal parts") {
  // Two kv heads of three query heads each, one token, two channels.
  std::vector<float> parts = {1, -2, 3, -2, -5, -2, 0, 1e-25f, 0, 2e-25f, 0, -2e-25f};
  const at::Tensor tensor = at::from_blob(parts.data(), {1, 6, 2}, at::kFloat);
  const at::Tensor mean = over_query_heads(tensor, 2, QueryHeads::Mean),
                   most = over_query_heads(tensor, 2, QueryHeads::Max);
  const float* m = mean.const_data_ptr<float>();
  CHECK(m[0] == Approx(3 * std::sqrt((1.0 + 9 + 25) / 3)));
  CHECK(m[1] == Approx(6.0));  // equal parts: the magnitude of their sum
  CHECK(m[2] == 0.0f);
  CHECK(m[3] == Approx(3 * 1e-25 * std::sqrt((1.0 + 4 + 4) / 3)).epsilon(1e-6));
  const float* x = most.const_data_ptr<float>();
  CHECK(x[0] == 15.0f);
  CHECK(x[1] == 6.0f);
  CHECK(x[3] == Approx(6e-25));
  CHECK(parse_query_heads("max") == QueryHeads::Max);
  CHECK_THROWS_WITH(parse_query_heads("median"), ContainsSubstring("known: joint, mean, max"));
}

TEST_CASE("calib.h5 holds the magnitudes over query heads, its keys and values as ever") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 16);
  for (const QueryHeads mode : {QueryHeads::Mean, QueryHeads::Max}) {
    CollectOptions options = options_for(*model, folder / (std::string(query_heads_name(mode)) + ".h5"));
    options.query_heads = mode;
    collect(*model, windows, options);
    const CalibrationReader reader(options.output);
    CHECK(reader.header().query_heads == query_heads_name(mode));
    std::vector<at::Tensor> expected(static_cast<std::size_t>(reader.header().shape.layers));
    sequence_gradients(*model, windows[0].ids, Recompute::Layer,
                       [&](const LayerGradients& layer) {
                         expected[layer.layer] = over_query_heads(layer.key_head_grad, layer.key.size(1), mode);
                       },
                       {.query_heads = true});
    for (int layer = 0; layer < reader.header().shape.layers; ++layer) {
      const std::vector<float> found = reader.gradients(layer, Side::Key);
      const float* want = expected[layer].const_data_ptr<float>();
      const float largest = expected[layer].max().item<float>();
      for (std::int64_t index = 0; index < expected[layer].numel(); ++index)
        if (std::abs(found[index] - want[index]) > std::max(want[index] * 0x1p-10f, largest * 1e-7f))
          FAIL("layer " << layer << " element " << index);
    }
  }
}

TEST_CASE("A journal of other query heads is refused") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  CollectOptions options = options_for(*model, folder / "x.h5");
  in_child([&] {
    AtStep kill(2 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
    collect(*model, windows, options, kill);
  });
  options.query_heads = QueryHeads::Max;
  CHECK_THROWS_WITH(collect(*model, windows, options), ContainsSubstring("query heads: joint there, max now"));
}
