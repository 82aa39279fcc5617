// What we write we read back; the files themselves are checked by h5py_test.cpp.
#include <sys/stat.h>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/core/half.h>

using namespace kvq;
using namespace kvq::test;

namespace {
void check_equal(const Provenance& a, const Provenance& b) {
  CHECK(a.model_sha256 == b.model_sha256);
  CHECK(a.tokenizer_sha256 == b.tokenizer_sha256);
  CHECK(a.text_sha256 == b.text_sha256);
  CHECK(a.config == b.config);
  CHECK(a.parents == b.parents);
}
}  // namespace

TEST_CASE("A quantizer comes back as it was written") {
  TempDir folder;
  for (const std::string recipe :
       {"nuq2-1%:share=head", "int4", "nf3:sink=0", "K=nuq1/V=nuq8-0.5%:qnorm", "kivi2", "nuq3-1%:share=3,recent=16",
        "K=fp8/V=nuq2-1%:rule=threshold", "int4:key=token,range=static"}) {
    const auto path = folder / (slug(parse_recipe(recipe)) + ".h5");
    const QuantizerFile written = sample_quantizer(recipe);
    write_quantizer(path, written, false);
    const QuantizerFile read = read_quantizer(path);
    INFO(recipe);
    check_equal(read.provenance, written.provenance);
    CHECK(read.fingerprints == written.fingerprints);
    CHECK(read.quantizer.recipe == written.quantizer.recipe);
    CHECK(read.quantizer.shape == written.quantizer.shape);
    CHECK(read.quantizer.rope == written.quantizer.rope);
    REQUIRE(read.quantizer.layers.size() == written.quantizer.layers.size());
    for (int layer = 0; layer < kShape.layers; ++layer) {
      for (Side side : kSides) {
        const SideQuantizer& a = read.quantizer.layers[layer].side(side);
        const SideQuantizer& b = written.quantizer.layers[layer].side(side);
        CHECK(a.recipe == b.recipe);
        CHECK(a.width() == b.width());
        CHECK(a.lower == b.lower);
        CHECK(a.upper == b.upper);
        CHECK(a.exponent == b.exponent);
        CHECK(a.outlier_rate == b.outlier_rate);
        REQUIRE(a.codebooks.size() == b.codebooks.size());
        for (std::size_t book = 0; book < a.codebooks.size(); ++book) {
          CHECK(a.codebooks[book].centroids == b.codebooks[book].centroids);
          CHECK(a.codebooks[book].decoded == b.codebooks[book].decoded);
        }
      }
    }
  }
}

TEST_CASE("Local layers of a quantizer come back as they were written, and damage to them is named") {
  TempDir folder;
  QuantizerFile written = sample_quantizer("nuq3-1%");
  written.quantizer.rope.kind = "default";
  written.quantizer.rope.local = {.theta = 1e4, .rotary_dim = written.quantizer.rope.rotary_dim};
  written.quantizer.rope.window = 512;
  written.quantizer.rope.is_local.assign(static_cast<std::size_t>(kShape.layers), 1);
  written.quantizer.rope.is_local[0] = 0;
  write_quantizer(folder / "q.h5", written, false);
  CHECK(read_quantizer(folder / "q.h5").quantizer.rope == written.quantizer.rope);

  written.quantizer.rope.is_local[1] = 2;
  write_quantizer(folder / "bad.h5", written, false);
  CHECK_THROWS_WITH(read_quantizer(folder / "bad.h5"),
                    ContainsSubstring("local_layers") && ContainsSubstring("layer 1"));
  written.quantizer.rope.is_local[1] = 1;
  written.quantizer.rope.window = 0;
  write_quantizer(folder / "window.h5", written, false);
  CHECK_THROWS_WITH(read_quantizer(folder / "window.h5"), ContainsSubstring("local_window"));
}

TEST_CASE("Thresholds come back as they were written, and are found by fraction and sinks") {
  TempDir folder;
  const ThresholdsFile written = sample_thresholds();
  write_thresholds(folder / "t.h5", written, false);
  const ThresholdsFile read = read_thresholds(folder / "t.h5");
  check_equal(read.provenance, written.provenance);
  CHECK(read.shape == written.shape);
  CHECK(read.cap == written.cap);
  REQUIRE(read.sets.size() == 2);
  for (std::size_t set = 0; set < 2; ++set) {
    CHECK(read.sets[set].fraction == written.sets[set].fraction);
    CHECK(read.sets[set].sinks == written.sets[set].sinks);
    for (int layer = 0; layer < kShape.layers; ++layer) {
      for (int tensor = 0; tensor < kThresholdTensors; ++tensor) {
        const ChannelThresholds &a = read.sets[set].layers[layer][tensor], &b = written.sets[set].layers[layer][tensor];
        CHECK(a.lower == b.lower);
        CHECK(a.upper == b.upper);
        CHECK(a.minimum == b.minimum);
        CHECK(a.maximum == b.maximum);
        CHECK(a.outlier_rate == b.outlier_rate);
        CHECK(a.capped_outlier_rate == b.capped_outlier_rate);
        CHECK(a.online_outlier_rate == b.online_outlier_rate);
      }
    }
  }
  CHECK(read.find(0.01, 1) == &read.sets[0]);
  CHECK(read.find(0.01, 0) == nullptr);
  CHECK(read.find(0.02, 1) == nullptr);
}

TEST_CASE("A calibration comes back as it was written, whatever the number of threads") {
  TempDir folder;
  // 45 000 tokens of 12 channels: more than two chunks, the last one partly filled.
  const CalibrationHeader written = sample_calibration_header(3, 15000);
  write_sample_calibration(folder / "one.h5", written, 1);
  write_sample_calibration(folder / "two.h5", written, 2);
  CHECK(read_bytes(folder / "one.h5") == read_bytes(folder / "two.h5"));

  const CalibrationReader reader(folder / "two.h5");
  const CalibrationHeader& read = reader.header();
  check_equal(read.provenance, written.provenance);
  CHECK(read.shape == written.shape);
  CHECK(read.rope == written.rope);
  CHECK(read.sequences == 3);
  CHECK(read.seqlen == 15000);
  CHECK(read.bos == "window");
  CHECK(read.tokens == written.tokens);
  CHECK(read.domains == written.domains);
  CHECK(read.loss == written.loss);
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const CalibrationLayer data = sample_calibration_layer(written, layer);
    const auto expected = [](const ScaledHalf& tensor) {
      std::vector<float> values;
      for (std::uint16_t half : tensor.values) values.push_back(half_to_float(half) * tensor.scale);
      return values;
    };
    CHECK(reader.values(layer, Side::Key) == expected(data.key));
    CHECK(reader.values(layer, Side::Value) == expected(data.value));
    CHECK(reader.gradients(layer, Side::Key) == expected(data.key_grad));
    CHECK(reader.gradients(layer, Side::Value) == expected(data.value_grad));
    CHECK(reader.query_moment(layer) == data.query_moment);
    CHECK(reader.attention_mass(layer) == data.attention_mass);
  }
}

TEST_CASE("A calibration without gradients, and metrics beside gradients or alone, are read back as written") {
  TempDir folder;
  for (const auto& [gradients, metrics] : {std::pair{true, true}, {false, true}, {false, false}}) {
    CalibrationHeader written = sample_calibration_header();
    written.gradients = gradients, written.metrics = metrics;
    write_sample_calibration(folder / "c.h5", written, 1, true);
    const CalibrationReader reader(folder / "c.h5");
    CHECK(reader.header().gradients == gradients);
    CHECK(reader.header().metrics == metrics);
    for (int layer = 0; layer < kShape.layers; ++layer) {
      const CalibrationLayer data = sample_calibration_layer(written, layer);
      CHECK(reader.attention_mass(layer) == data.attention_mass);
      CHECK(reader.values(layer, Side::Value).size() == data.value.values.size());
      if (gradients) CHECK(reader.gradients(layer, Side::Key).size() == data.key_grad.values.size());
      if (metrics) CHECK(reader.metric(layer, Side::Key) == data.key_metric);
      if (metrics) CHECK(reader.metric(layer, Side::Value) == data.value_metric);
    }
  }
}

TEST_CASE("The same content gives the same bytes at another time and under another name") {
  TempDir folder;
  write_quantizer(folder / "a.h5", sample_quantizer(), false);
  write_thresholds(folder / "ta.h5", sample_thresholds(), false);
  ::sleep(1);  // HDF5's time stamps count seconds
  write_quantizer(folder / "b.h5", sample_quantizer(), false);
  write_thresholds(folder / "a much longer name.h5", sample_thresholds(), false);
  CHECK(read_bytes(folder / "a.h5") == read_bytes(folder / "b.h5"));
  CHECK(read_bytes(folder / "ta.h5") == read_bytes(folder / "a much longer name.h5"));
}

TEST_CASE("Output that exists is replaced only when forced; nothing half-written stays behind") {
  TempDir folder;
  const auto path = folder / "q.h5";
  write_quantizer(path, sample_quantizer("int4"), false);
  const std::string before = read_bytes(path);
  CHECK_THROWS_WITH(write_quantizer(path, sample_quantizer(), false), ContainsSubstring("--force"));
  CHECK_THROWS_WITH(CalibrationWriter(path, false, 1), ContainsSubstring("--force"));
  CHECK(read_bytes(path) == before);
  write_quantizer(path, sample_quantizer(), true);
  CHECK(read_bytes(path) != before);
  {
    CalibrationWriter abandoned(folder / "c.h5", false, 1);
    abandoned.write_header(sample_calibration_header());
  }
  CHECK(entries(folder.path()) == 1);
  CHECK_THROWS_WITH(write_quantizer(folder / "none.h5", {{}, {parse_recipe("none")}, {}}, false),
                    ContainsSubstring("none"));
}
