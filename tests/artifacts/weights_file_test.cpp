// Files of weight gradients and of quantized weights: what is written is read, what is damaged is refused.
#include <cmath>
#include <limits>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/artifacts/weight_fisher_file.h>
#include <kvq/artifacts/weights_file.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>

using namespace kvq;
using namespace kvq::test;

namespace {

const BlockShape kBlocks{kShape, 10, 7};

ScaledHalf sample_roots(int layer, BlockMatrix matrix) {
  ScaledHalf roots;
  roots.scale = 0.25f;
  for (std::int64_t index = 0; index < kBlocks.elements(matrix); ++index)
    roots.values.push_back(float_to_half(static_cast<float>((index * 7 + layer + static_cast<int>(matrix)) % 100)));
  return roots;
}

void write_sample_fisher(const std::filesystem::path& path) {
  WeightFisherWriter writer(path, true);
  writer.write_header(sample_calibration_header(), kBlocks);
  for (int layer = 0; layer < kShape.layers; ++layer)
    for (const BlockMatrix matrix : kBlockMatrices) writer.write_matrix(layer, matrix, sample_roots(layer, matrix));
  writer.finish();
}
void read_whole_fisher(const std::filesystem::path& path) {
  const WeightFisherReader reader(path);
  for (int layer = 0; layer < reader.shape().kv.layers; ++layer)
    for (const BlockMatrix matrix : kBlockMatrices) reader.roots(layer, matrix);
}

WeightMatrix sample_matrix(int layer, BlockMatrix which) {
  WeightMatrix matrix;
  matrix.rows = kBlocks.rows(which);
  matrix.columns = kBlocks.columns(which);
  matrix.bits = 3;
  matrix.exponent = -2 + layer;
  for (int row = 0; row < matrix.rows; ++row)
    for (int level = 0; level < 8; ++level) matrix.codebooks.push_back(float_to_half(static_cast<float>(row + level)));
  matrix.codes.assign(static_cast<std::size_t>(matrix.rows * matrix.row_bytes()), 0);
  for (int row = 0; row < matrix.rows; ++row)
    for (int column = 0; column < matrix.columns; ++column) matrix.set_code(row, column, (row + column + layer) % 8);
  matrix.row_start.assign(static_cast<std::size_t>(matrix.rows) + 1, 1);
  matrix.row_start[0] = 0;
  matrix.sparse_columns = {2};
  matrix.sparse_values = {float_to_half(9.5f)};
  return matrix;
}

void write_sample_weights(const std::filesystem::path& path) {
  const WeightsHeader header{sample_provenance(), kBlocks, {3, 0.0045}, 0, {4, 9}};
  WeightsWriter writer(path, header, true);
  for (int layer = 0; layer < kShape.layers; ++layer)
    for (const BlockMatrix matrix : kBlockMatrices) writer.write_matrix(layer, matrix, sample_matrix(layer, matrix));
  writer.finish();
}
void read_whole_weights(const std::filesystem::path& path) { WeightsReader(path).check(); }

struct Kind {
  const char* name;
  std::function<void(const std::filesystem::path&)> write;
  Read read;
};
const Kind kFisher{"weight-fisher", write_sample_fisher, read_whole_fisher};
const Kind kWeights{"weights", write_sample_weights, read_whole_weights};

std::string after(const Kind& kind, const std::function<void(hid_t)>& change) {
  TempDir folder;
  const auto path = folder / "x.h5";
  kind.write(path);
  edit(path, change);
  const std::string message = refusal(kind.read, path);
  if (!message.empty()) CHECK_THAT(message, ContainsSubstring(path.string()));
  return message;
}

/// Overwrites one element of a dataset of 16-bit numbers.
void overwrite_bits(hid_t file, const char* dataset, hid_t type, std::size_t index, std::uint16_t value) {
  const hid_t id = H5Dopen2(file, dataset, H5P_DEFAULT);
  REQUIRE(id >= 0);
  std::vector<std::uint16_t> data(H5Dget_storage_size(id) / 2);
  const hid_t stored = type < 0 ? H5Dget_type(id) : type;
  REQUIRE(H5Dread(id, stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0);
  data.at(index) = value;
  REQUIRE(H5Dwrite(id, stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0);
  H5Dclose(id);
}
constexpr hid_t kAsStored = -1;

}  // namespace

TEST_CASE(
    "Weight gradients and quantized weights are read as they were written, and the same bytes are written again") {
  TempDir folder;
  write_sample_fisher(folder / "f.h5");
  const WeightFisherReader fisher(folder / "f.h5");
  CHECK(fisher.shape() == kBlocks);
  CHECK(fisher.header().tokens == sample_calibration_header().tokens);
  CHECK(fisher.header().loss == sample_calibration_header().loss);
  const ScaledHalf roots = sample_roots(2, BlockMatrix::Up);
  const std::vector<float> read = fisher.roots(2, BlockMatrix::Up);
  REQUIRE(read.size() == roots.values.size());
  for (std::size_t index = 0; index < read.size(); ++index)
    CHECK(read[index] == half_to_float(roots.values[index]) * 0.25f);

  write_sample_weights(folder / "w.h5");
  const WeightsReader weights(folder / "w.h5");
  CHECK(weights.header().shape == kBlocks);
  CHECK(weights.header().scheme == parse_weight_scheme("w3-s0.45%"));
  CHECK(weights.header().fingerprints == std::vector<std::uint64_t>{4, 9});
  CHECK(weights.header().provenance.parents == sample_provenance().parents);
  std::int64_t bytes = 0;
  for (const BlockMatrix matrix : kBlockMatrices) {
    CHECK(weights.matrix(1, matrix) == sample_matrix(1, matrix));
    bytes += sample_matrix(1, matrix).counted_bytes();
  }
  CHECK(weights.header().bits_counted ==
        Approx(8.0 * static_cast<double>(bytes) / static_cast<double>(kBlocks.layer_elements())).epsilon(1e-12));
  weights.check();

  write_sample_fisher(folder / "f2.h5");
  write_sample_weights(folder / "w2.h5");
  CHECK(read_bytes(folder / "f.h5") == read_bytes(folder / "f2.h5"));
  CHECK(read_bytes(folder / "w.h5") == read_bytes(folder / "w2.h5"));
}

TEST_CASE("Files of weights cut anywhere are refused") {
  TempDir folder;
  for (const Kind& kind : {kFisher, kWeights}) {
    kind.write(folder / "whole.h5");
    const std::string bytes = read_bytes(folder / "whole.h5");
    REQUIRE(refusal(kind.read, folder / "whole.h5").empty());
    for (std::size_t size = 0; size < bytes.size(); size += 211) {
      write_bytes(folder / "cut.h5", std::string_view(bytes).substr(0, size));
      if (refusal(kind.read, folder / "cut.h5").find("cut.h5") == std::string::npos)
        FAIL(kind.name << " cut at " << size);
    }
  }
}

TEST_CASE("Files of weights of a newer schema, unfinished, or of another kind are refused") {
  for (const Kind& kind : {kFisher, kWeights}) {
    INFO(kind.name);
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "schema_version", "2.0"); }),
               ContainsSubstring("2.0") && ContainsSubstring("1.x"));
    CHECK(after(kind, [](hid_t file) { replace_attribute(file, "schema_version", "1.99"); }).empty());
    CHECK_THAT(after(kind, [](hid_t file) { H5Adelete(file, "complete"); }), ContainsSubstring("incomplete"));
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "kvq_schema", "quantizer"); }),
               ContainsSubstring("is a quantizer file, a " + std::string(kind.name)));
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "hidden", std::int64_t{0}); }),
               ContainsSubstring("'/hidden' attribute is 0"));
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "intermediate", std::int64_t{8}); }),
               ContainsSubstring("has shape"));
    CHECK_THAT(after(kind, [](hid_t file) { H5Ldelete(file, "layers/02", H5P_DEFAULT); }), ContainsSubstring("02"));
  }
}

TEST_CASE("Damaged weight gradients are refused with dataset and place") {
  CHECK_THAT(after(kFisher, [](hid_t file) { overwrite_bits(file, "layers/01/o", kAsStored, 25, 0x7e00); }),
             ContainsSubstring("'/layers/01/o' holds nan at [1, 1]"));
  CHECK_THAT(after(kFisher, [](hid_t file) { overwrite_bits(file, "layers/00/q", kAsStored, 0, 0xbc00); }),
             ContainsSubstring("holds -0.25 at [0, 0]"));
  CHECK_THAT(after(kFisher, [](hid_t file) { H5Ldelete(file, "layers/01/down", H5P_DEFAULT); }),
             ContainsSubstring("'/layers/01/down' is missing"));
  CHECK_THAT(after(kFisher,
                   [](hid_t file) {
                     replace_dataset(file, "layers/01/up", H5T_IEEE_F32LE, {7, 10});
                   }),
             ContainsSubstring("holds float32, float16 is needed"));
}

TEST_CASE("Damaged quantized weights are refused with dataset and place") {
  const auto hold = [](const char* dataset, std::size_t index, std::uint16_t value) {
    return after(kWeights, [&](hid_t file) { overwrite_bits(file, dataset, kAsStored, index, value); });
  };
  CHECK_THAT(hold("layers/01/k/codebooks", 11, 0x7c00),
             ContainsSubstring("'/layers/01/k' is damaged: 'codebooks' holds NaN or infinity at [1, 3]"));
  CHECK_THAT(hold("layers/01/k/codebooks", 12, 0xbc00), ContainsSubstring("does not ascend at [1, 4]"));
  CHECK_THAT(hold("layers/02/gate/sparse_values", 0, 0xfe00), ContainsSubstring("'sparse_values' holds NaN"));
  CHECK_THAT(hold("layers/02/gate/sparse_columns", 0, 10), ContainsSubstring("'sparse_columns' holds 10 at [0]"));
  CHECK_THAT(after(kWeights, [](hid_t file) { replace_dataset(file, "layers/00/v/row_start", H5T_STD_I32LE, {13}); }),
             ContainsSubstring("'row_start' runs from 0 to 0"));
  CHECK_THAT(after(kWeights,
                   [](hid_t file) {
                     replace_dataset(file, "layers/00/v/codes", H5T_STD_U8LE, {12, 3});
                   }),
             ContainsSubstring("'/layers/00/v/codes' has shape [12, 3]"));
  CHECK_THAT(after(kWeights,
                   [](hid_t file) {
                     replace_dataset(file, "layers/00/v/codes", H5T_STD_I8LE, {12, 4});
                   }),
             ContainsSubstring("uint8 is needed"));
  CHECK_THAT(after(kWeights, [](hid_t file) { replace_attribute(file, "scheme", "w9"); }),
             ContainsSubstring("'/scheme'"));
  CHECK_THAT(after(kWeights, [](hid_t file) { replace_attribute(file, "bits_counted", 3.0); }),
             ContainsSubstring("'/bits_counted' attribute is 3"));
}
