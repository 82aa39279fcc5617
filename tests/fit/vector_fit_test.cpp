// Fitting codecs of head vectors: which rows the tables are made of, weights, and the measured size of blocks.
#include <algorithm>
#include <cmath>

#include <kvq/core/error.h>
#include <kvq/fit/fit.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/vector_side.h>

#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

using namespace kvq;
using namespace kvq::test;

namespace {

std::vector<Quantizer> fit(const CalibrationReader& calibration, const std::vector<std::string>& texts,
                           std::vector<FitReport>* reports = nullptr, int threads = 2) {
  RunContext context = quiet_context();
  context.threads = threads;
  std::vector<Recipe> recipes;
  for (const std::string& text : texts) recipes.push_back(parse_recipe(text));
  return fit_quantizers(calibration, nullptr, recipes, context, reports);
}

/// Head vectors of positions [sinks, sinks + tokens) of every sequence, `[.., head_dim]`, sequence by sequence and in
/// each head by head.
std::vector<float> rows_of(const std::vector<float>& x, int sinks, int tokens, std::vector<int> heads) {
  const int dim = kSmallShape.head_dim, width = kSmallShape.width();
  std::vector<float> rows;
  for (int sequence = 0; sequence < kSmallSequences; ++sequence) {
    for (const int head : heads) {
      for (int token = sinks; token < sinks + tokens; ++token) {
        const auto first = x.begin() + (sequence * kSmallSeqlen + token) * width + head * dim;
        rows.insert(rows.end(), first, first + dim);
      }
    }
  }
  return rows;
}

std::vector<std::byte> trained(const std::string& recipe, const std::vector<float>& rows,
                               const std::vector<float>& row_weights = {},
                               const std::vector<float>& channel_weights = {}) {
  VectorSample sample;
  sample.x = rows;
  sample.row_weights = row_weights, sample.channel_weights = channel_weights;
  return train_vector_tables(parse_vector_recipe(recipe), kSmallShape.head_dim, sample);
}

}  // namespace

TEST_CASE("Tables are fitted to the head vectors that count, of all heads or of one, whatever the threads") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5");
  const CalibrationReader calibration(folder / "calib.h5");
  std::vector<FitReport> reports;
  // 50 tokens a sequence: one run of all 49 that count, of 48 for anchors every 16, which runs begin with.
  const std::vector<std::string> recipes = {"scalar3", "scalar3:share=head,sink=2", "delta2:anchor=16",
                                            "K=scalar2:entropy=rans,page=16,rope=post/V=nuq3"};
  const std::vector<Quantizer> quantizers = fit(calibration, recipes, &reports);
  const std::vector<Quantizer> alone = fit(calibration, recipes, nullptr, 1);
  CHECK(std::isnan(reports[0].error[0]));
  CHECK_FALSE(std::isnan(reports[3].error[1]));
  for (int layer = 0; layer < kSmallShape.layers; ++layer) {
    for (const Side which : kSides) {
      const std::vector<float> x = calibration.values(layer, which);
      const auto tables = [&](int recipe) { return quantizers[recipe].layers[layer].side(which).vector_tables; };
      REQUIRE(tables(0).size() == 1);
      CHECK((tables(0)[0] == trained("scalar3", rows_of(x, 1, 49, {0, 1}))));
      REQUIRE(tables(1).size() == 2);
      CHECK((tables(1)[0] == trained("scalar3", rows_of(x, 2, 48, {0}))));
      CHECK((tables(1)[1] == trained("scalar3", rows_of(x, 2, 48, {1}))));
      REQUIRE(tables(2).size() == 1);
      CHECK((tables(2)[0] == trained("delta2:anchor=16", rows_of(x, 1, 48, {0, 1}))));
      for (std::size_t recipe = 0; recipe < recipes.size(); ++recipe)
        CHECK((alone[recipe].layers[layer].side(which).vector_tables ==
               quantizers[recipe].layers[layer].side(which).vector_tables));
    }
    CHECK(quantizers[0].layers[layer].key.codebooks.empty());
    CHECK(quantizers[3].layers[layer].value.vector_tables.empty());
  }
}

TEST_CASE("Runs of a delta codec are whole blocks of anchors") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5");
  const CalibrationReader calibration(folder / "calib.h5");
  const Quantizer quantizer = fit(calibration, {"delta2:anchor=40"})[0];
  const std::vector<float> x = calibration.values(1, Side::Value);
  CHECK((quantizer.layers[1].value.vector_tables[0] == trained("delta2:anchor=40", rows_of(x, 1, 40, {0, 1}))));
  const Quantizer longer = fit(calibration, {"delta2"})[0];  // no block of 64 in a sequence: what there is
  CHECK((longer.layers[1].value.vector_tables[0] == trained("delta2", rows_of(x, 1, 49, {0, 1}))));
}

TEST_CASE("pq weighs errors by gradients, rows times channels, or by what needs none") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5", nullptr, std::string(64, 'a'), "joint", {.metrics = true});
  const CalibrationReader calibration(folder / "calib.h5");
  const std::vector<Quantizer> quantizers =
      fit(calibration, {"pq:m=2,bits=3", "pq:m=2,bits=3,weights=none", "pq:m=2,bits=3,weights=query"});
  const int layer = 1, dim = kSmallShape.head_dim;
  const std::vector<float> x = calibration.values(layer, Side::Value), g = calibration.gradients(layer, Side::Value);
  for (const int head : {0, 1}) {
    const std::vector<float> rows = rows_of(x, 1, 49, {head}), gradients = rows_of(g, 1, 49, {head});
    std::vector<double> of_rows(rows.size() / dim), of_channels(dim);
    double all = 0;
    for (std::size_t at = 0; at < rows.size(); ++at) {
      const double square = static_cast<double>(gradients[at]) * static_cast<double>(gradients[at]);
      of_rows[at / dim] += square, of_channels[at % dim] += square;
    }
    for (const double weight : of_rows) all += weight;
    std::vector<float> row_weights, channel_weights;
    for (const double weight : of_rows) row_weights.push_back(static_cast<float>(weight / all * of_rows.size()));
    for (const double weight : of_channels) channel_weights.push_back(static_cast<float>(weight / all * dim));
    const auto tables = [&](int recipe) { return quantizers[recipe].layers[layer].value.vector_tables[head]; };
    CHECK((tables(0) == trained("pq:m=2,bits=3", rows, row_weights, channel_weights)));
    CHECK((tables(1) == trained("pq:m=2,bits=3", rows)));
    CHECK_FALSE((tables(0) == tables(1)));
    CHECK_FALSE((tables(2) == tables(1)));
    CHECK_FALSE((tables(2) == tables(0)));
  }
}

TEST_CASE("Blocks of varying size are measured: full ones, without the first that sinks are part of") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5");
  const CalibrationReader calibration(folder / "calib.h5");
  const std::vector<Quantizer> quantizers =
      fit(calibration, {"scalar4:entropy=huffman,page=16", "delta2:anchor=16,abits=5,sink=0",
                        "scalar4:entropy=rans,page=64", "scalar3", "delta2"});
  for (int recipe = 0; recipe < 2; ++recipe) {
    const Quantizer& quantizer = quantizers[static_cast<std::size_t>(recipe)];
    const SideQuantizer& side = quantizer.layers[0].key;
    const std::vector<float> x = calibration.values(0, Side::Key);
    const auto codecs = head_codecs(side);
    double bytes = 0;
    int blocks = 0;
    for (int first = recipe == 0 ? 16 : 0; first + 16 <= kSmallSeqlen; first += 16) {
      for (const int head : {0, 1}) {
        const std::vector<float> rows = rows_of(x, first, 16, {head});  // of all sequences
        for (int sequence = 0; sequence < kSmallSequences; ++sequence) {
          std::vector<std::byte> encoded;
          codecs[head]->encode(std::span<const float>(rows).subspan(sequence * 64, 64), encoded);
          bytes += static_cast<double>(encoded.size());
          ++blocks;
        }
      }
    }
    CHECK(side.block_bytes == Approx(2 * bytes / blocks));
    // Forecast: the blocks of the calibration are those of a cache, and the open one.
    CHECK(forecast_footprint(quantizer, 160).codes > 9 * 2 * static_cast<std::int64_t>(side.block_bytes));
  }
  CHECK(quantizers[2].layers[0].key.block_bytes > 0);  // no sequence has a whole page: from what there is
  CHECK(quantizers[3].layers[0].key.block_bytes == 0);
  CHECK(quantizers[4].layers[0].key.block_bytes == 0);
}

TEST_CASE("What a codec needs and a calibration cannot give is refused before the fit") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5");
  const CalibrationReader calibration(folder / "calib.h5");
  CHECK_THROWS_WITH(fit(calibration, {"pq:m=3"}), ContainsSubstring("m must divide"));
  write_small_calibration(folder / "forward.h5", nullptr, std::string(64, 'a'), "joint",
                          {.gradients = false, .metrics = true});
  const CalibrationReader forward(folder / "forward.h5");
  CHECK_THROWS_WITH(fit(forward, {"pq:m=2,bits=2"}), ContainsSubstring("need gradients"));
  CHECK_NOTHROW(fit(forward, {"pq:m=2,bits=2,weights=none", "pq:m=2,bits=2,weights=query", "delta3:anchor=8"}));
  CHECK(with_query_metric(parse_recipe("pq:m=2")) == parse_recipe("pq:m=2,weights=query"));
  CHECK(with_query_metric(parse_recipe("delta3")) == parse_recipe("delta3"));
  write_small_calibration(folder / "mean.h5", nullptr, std::string(64, 'a'), "mean");
  const CalibrationReader magnitudes(folder / "mean.h5");
  CHECK_THROWS_WITH(fit(magnitudes, {"pq:m=2,bits=2,rope=post"}), ContainsSubstring("rope=post"));
  CHECK_NOTHROW(fit(magnitudes, {"pq:m=2,bits=2", "scalar3:rope=post"}));
}

TEST_CASE("pq without any gradient falls back to equal weights") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5",
                          [](float value, int, Side, bool gradient, int, int) { return gradient ? 0.0f : value; });
  const CalibrationReader calibration(folder / "calib.h5");
  const std::vector<Quantizer> quantizers = fit(calibration, {"pq:m=2,bits=3", "pq:m=2,bits=3,weights=none"});
  CHECK((quantizers[0].layers[0].key.vector_tables == quantizers[1].layers[0].key.vector_tables));
}
