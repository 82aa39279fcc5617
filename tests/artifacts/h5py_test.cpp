// A trusted second program on the other side: h5py reads what we write and writes what we read.
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/skip.h"
#include "support/temp_dir.h"

#include <kvq/core/hash.h>

using namespace kvq;
using namespace kvq::test;

namespace {

std::string python() {
  const char* chosen = std::getenv("KVQ_TEST_PYTHON");
  return chosen && *chosen ? chosen : "python3";
}

bool has_h5py() { return std::system((python() + " -c 'import h5py, numpy' >/dev/null 2>&1").c_str()) == 0; }
constexpr const char* kNoH5py = "python3 has no h5py (KVQ_TEST_PYTHON may name one that has)";

std::string script(const char* name) { return "'" KVQ_SOURCE_DIR "/tests/artifacts/" + std::string(name) + "' "; }

std::set<std::string> seen_by_h5py(const std::filesystem::path& path) {
  FILE* pipe = ::popen((python() + " " + script("h5py_read.py") + "'" + path.string() + "'").c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, got);
  REQUIRE(::pclose(pipe) == 0);
  std::set<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.insert(line);
  return lines;
}

std::filesystem::path written_by_h5py(const TempDir& folder, const std::string& kind) {
  const auto path = folder / (kind + ".h5");
  REQUIRE(std::system((python() + " " + script("h5py_write.py") + kind + " '" + path.string() + "'").c_str()) == 0);
  return path;
}

template <class T>
std::string line(const std::string& name, const std::string& dtype, const std::string& shape,
                 const std::vector<T>& data, const std::string& filters = "") {
  const std::string digest =
      sha256_of(std::string_view(reinterpret_cast<const char*>(data.data()), data.size() * sizeof(T)));
  return name + " " + dtype + " " + shape + " " + digest + (filters.empty() ? "" : " " + filters);
}

#define CHECK_SEEN(expected)               \
  do {                                     \
    const std::string wanted = (expected); \
    INFO("not seen by h5py: " << wanted);  \
    CHECK(seen.count(wanted) == 1);        \
  } while (false)

template <class T>
std::vector<T> ramp(int count, double first, double step = 1.0) {
  std::vector<T> values;
  for (int index = 0; index < count; ++index) values.push_back(static_cast<T>(first + step * index));
  return values;
}

}  // namespace

TEST_CASE("h5py sees every dataset of our calibration file with its shape, type and content") {
  if (!has_h5py()) KVQ_SKIP(kNoH5py);
  TempDir folder;
  const CalibrationHeader header = sample_calibration_header(2, 25000);  // two chunks and a part
  write_sample_calibration(folder / "c.h5", header);
  const std::set<std::string> seen = seen_by_h5py(folder / "c.h5");
  CHECK(seen.size() == 21u + 3u + kShape.layers * 10u);
  CHECK_SEEN("/@kvq_schema calibration");
  CHECK_SEEN("/@schema_version 1.8");
  CHECK_SEEN("/@model_sha256 " + std::string(64, 'a'));
  CHECK_SEEN("/@config samples = 2\\nseed = 7\\n");
  CHECK_SEEN("/@parents calibration " + std::string(64, 'd') + "\\n");
  CHECK_SEEN("/@bos window");
  CHECK_SEEN("/@layers 3");
  CHECK_SEEN("/@rope_kind llama3");
  CHECK_SEEN("/@rope_theta 500000.0");
  CHECK_SEEN("/@complete 1");
  CHECK_SEEN("/domain strings [2] prosa-ä|code");
  CHECK_SEEN(line("/tokens", "<i4", "[2, 25000]", header.tokens));
  CHECK_SEEN(line("/loss", "<f8", "[2]", header.loss));
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const CalibrationLayer data = sample_calibration_layer(header, layer);
    const std::string group = "/layers/0" + std::to_string(layer);
    CHECK_SEEN(line(group + "/key", "<f2", "[50000, 2, 6]", data.key.values, "shuffle+gzip"));
    CHECK_SEEN(line(group + "/value", "<f2", "[50000, 2, 6]", data.value.values, "shuffle+gzip"));
    CHECK_SEEN(line(group + "/key_grad", "<f2", "[50000, 2, 6]", data.key_grad.values));
    CHECK_SEEN(line(group + "/value_grad", "<f2", "[50000, 2, 6]", data.value_grad.values));
    CHECK_SEEN(group + "/key@scale 0.5");
    CHECK_SEEN(group + "/value_grad@scale 4.0");
    CHECK_SEEN(line(group + "/query_moment", "<f8", "[2, 6, 6]", data.query_moment));
    CHECK_SEEN(line(group + "/attention_mass", "<f4", "[50000]", data.attention_mass));
  }
}

TEST_CASE("h5py sees a calibration without gradients, and its metrics") {
  if (!has_h5py()) KVQ_SKIP(kNoH5py);
  TempDir folder;
  CalibrationHeader header = sample_calibration_header();
  header.gradients = false, header.metrics = true;
  write_sample_calibration(folder / "c.h5", header, 2);
  const std::set<std::string> seen = seen_by_h5py(folder / "c.h5");
  CHECK_SEEN("/@gradients 0");
  CHECK_SEEN("/@metrics 1");
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const CalibrationLayer data = sample_calibration_layer(header, layer);
    const std::string group = "/layers/0" + std::to_string(layer);
    CHECK_SEEN(line(group + "/key_metric", "<f8", "[2, 6, 6]", data.key_metric));
    CHECK_SEEN(line(group + "/value_metric", "<f8", "[2, 6, 6]", data.value_metric));
    CHECK(seen.count(group + "/key_grad@scale 2.0") == 0);
  }
}

TEST_CASE("h5py sees our thresholds and quantizers") {
  if (!has_h5py()) KVQ_SKIP(kNoH5py);
  TempDir folder;
  const ThresholdsFile thresholds = sample_thresholds();
  write_thresholds(folder / "t.h5", thresholds, false);
  std::set<std::string> seen = seen_by_h5py(folder / "t.h5");
  CHECK_SEEN("/@cap 0.25");
  CHECK_SEEN("/@set_count 2");
  CHECK_SEEN("/sets/00@fraction 0.01");
  CHECK_SEEN("/sets/00@sinks 1");
  std::vector<float> upper;
  std::vector<double> rates;
  for (const auto& layer : thresholds.sets[0].layers) {
    upper.insert(upper.end(), layer[2].upper.begin(), layer[2].upper.end());
    rates.push_back(layer[2].capped_outlier_rate);
  }
  CHECK_SEEN(line("/sets/00/value/upper", "<f4", "[3, 2, 6]", upper));
  CHECK_SEEN(line("/sets/00/value/capped_outlier_rate", "<f8", "[3]", rates));

  const QuantizerFile quantizer = sample_quantizer("nuq2-1%:share=head,qnorm");
  write_quantizer(folder / "q.h5", quantizer, false);
  seen = seen_by_h5py(folder / "q.h5");
  CHECK_SEEN("/@recipe nuq2-1%:share=head,qnorm");
  CHECK_SEEN("/@rope_rotary_dim 4");
  CHECK_SEEN(line("/fingerprints", "<u8", "[3]", quantizer.fingerprints));
  for (int layer = 0; layer < kShape.layers; ++layer) {
    const std::string group = "/layers/0" + std::to_string(layer);
    const SideQuantizer& key = quantizer.quantizer.layers[layer].key;
    CHECK_SEEN(group + "/key@exponent -9");
    CHECK_SEEN(line(group + "/key/lower", "<f4", "[2, 6]", key.lower));
    CHECK_SEEN(line(group + "/key/upper", "<f4", "[2, 6]", key.upper));
    std::vector<float> centroids = key.codebooks[0].centroids, decoded = key.codebooks[0].decoded;
    centroids.insert(centroids.end(), key.codebooks[1].centroids.begin(), key.codebooks[1].centroids.end());
    decoded.insert(decoded.end(), key.codebooks[1].decoded.begin(), key.codebooks[1].decoded.end());
    CHECK_SEEN(line(group + "/key/centroids", "<f4", "[2, 4]", centroids));
    CHECK_SEEN(line(group + "/key/decoded", "<f4", "[2, 4]", decoded));
  }
}

TEST_CASE("Files that h5py made from the published format are read") {
  if (!has_h5py()) KVQ_SKIP(kNoH5py);
  TempDir folder;
  const CalibrationReader calibration(written_by_h5py(folder, "calibration"));
  CHECK(calibration.header().provenance.text_sha256 == std::string(64, '3'));
  CHECK(calibration.header().shape == KvShape{2, 4, 2, 4});
  CHECK(calibration.header().rope.kind == "linear");
  CHECK(calibration.header().tokens == ramp<std::int32_t>(6, 10));
  CHECK(calibration.header().domains == std::vector<std::string>{"prose", "code"});
  CHECK(calibration.header().loss == std::vector<double>{1.5, 2.5});
  CHECK(calibration.values(1, Side::Key) == ramp<float>(48, 50, 0.5));
  CHECK(calibration.values(1, Side::Value) == ramp<float>(48, 55, 0.5));
  CHECK(calibration.gradients(0, Side::Key) == ramp<float>(48, 10, 0.5));
  CHECK(calibration.gradients(1, Side::Value) == ramp<float>(48, 65, 0.5));
  CHECK(calibration.query_moment(1) == ramp<double>(32, 1));
  CHECK(calibration.attention_mass(1) == ramp<float>(6, 1.5));

  const CalibrationReader forward(written_by_h5py(folder, "forward"));
  CHECK_FALSE(forward.header().gradients);
  CHECK(forward.metric(1, Side::Key) == std::vector<double>{3, 1, 1, 1, 1, 3, 1, 1, 1, 1, 3, 1, 1, 1, 1, 3,
                                                            3, 1, 1, 1, 1, 3, 1, 1, 1, 1, 3, 1, 1, 1, 1, 3});
  CHECK(forward.metric(0, Side::Value)[5] == 4.0);
  CHECK(forward.values(1, Side::Value) == ramp<float>(48, 55, 0.5));

  const ThresholdsFile thresholds = read_thresholds(written_by_h5py(folder, "thresholds"));
  REQUIRE(thresholds.find(0.01, 1) != nullptr);
  const ChannelThresholds& value = thresholds.find(0.01, 1)->layers[1][2];
  CHECK(value.lower == ramp<float>(8, 2009));
  CHECK(value.maximum == ramp<float>(8, 2011));
  CHECK(value.outlier_rate == 0.5);

  const QuantizerFile file = read_quantizer(written_by_h5py(folder, "quantizer"));
  CHECK(file.quantizer.recipe == parse_recipe("nuq2:qnorm"));
  CHECK(file.fingerprints == std::vector<std::uint64_t>{5, std::uint64_t{1} << 63});
  CHECK(file.quantizer.layers[1].key.exponent == -1);
  CHECK(file.quantizer.layers[1].key.upper == ramp<float>(8, 11));
  CHECK(file.quantizer.layers[1].value.codebooks[0].decoded == ramp<float>(4, -1.25));
}
