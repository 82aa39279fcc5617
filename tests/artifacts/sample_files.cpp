#include "artifacts/sample_files.h"

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>
#include <kvq/quant/recipe_traits.h>
#include <algorithm>

namespace kvq::test {

Provenance sample_provenance() {
  return {std::string(64, 'a'),
          std::string(64, 'b'),
          std::string(64, 'c'),
          "samples = 2\nseed = 7\n",
          {{"calibration", std::string(64, 'd')}}};
}

namespace {
RopeParams sample_rope() {
  RopeParams rope;
  rope.kind = "llama3";
  rope.theta = 500000;
  rope.rotary_dim = 4;
  rope.factor = 8;
  rope.original_context = 8192;
  return rope;
}

std::vector<float> ramp(int count, float first, float step) {
  std::vector<float> values;
  for (int index = 0; index < count; ++index) values.push_back(first + step * static_cast<float>(index));
  return values;
}
}  // namespace

QuantizerFile sample_quantizer(const std::string& recipe) {
  QuantizerFile file;
  file.provenance = sample_provenance();
  file.quantizer.recipe = parse_recipe(recipe);
  file.quantizer.shape = kShape;
  file.quantizer.rope = sample_rope();
  file.fingerprints = {1, 2, 0xfedcba9876543210ull};
  for (int layer = 0; layer < kShape.layers; ++layer) {
    LayerQuantizer tensors;
    for (Side side : kSides) {
      SideQuantizer& tensor = tensors.side(side);
      tensor.recipe = file.quantizer.recipe.side(side);
      tensor.kv_heads = kShape.kv_heads;
      tensor.head_dim = kShape.head_dim;
      if (stores_thresholds(tensor.recipe)) {
        tensor.lower = ramp(kShape.width(), -2.0f - static_cast<float>(layer), 0.125f);
        tensor.upper = ramp(kShape.width(), 1.0f, 0.25f);
      }
      const int books = codebook_count(tensor.recipe, kShape.kv_heads, kShape.head_dim);
      for (int book = 0; book < books; ++book) {
        Codebook codebook = uniform_codebook(tensor.recipe.bits);
        codebook.centroids[0] -= 0.01f * static_cast<float>(book + layer);
        codebook.decoded = codebook.centroids;
        if (tensor.recipe.qnorm) codebook.decoded.back() += 0.5f;
        tensor.codebooks.push_back(codebook);
      }
      for (const int bits : lower_tier_bits(file.quantizer.recipe.tiers)) {
        tensor.lower_tiers.push_back({bits, {}});
        for (int book = 0; book < books; ++book) {
          Codebook codebook = uniform_codebook(bits);
          codebook.centroids.back() += 0.01f * static_cast<float>(book + layer);
          codebook.decoded = codebook.centroids;
          tensor.lower_tiers.back().codebooks.push_back(codebook);
        }
      }
      tensor.exponent = side == Side::Key ? -9 : 3;
      tensor.outlier_rate = 0.0101 + 0.001 * layer;
    }
    file.quantizer.layers.push_back(tensors);
  }
  return file;
}

ThresholdsFile sample_thresholds() {
  ThresholdsFile file;
  file.provenance = sample_provenance();
  file.shape = kShape;
  file.cap = 0.25;
  for (double fraction : {0.01, 0.0}) {
    ThresholdSet set;
    set.fraction = fraction;
    set.sinks = fraction > 0 ? 1 : 0;
    set.layers.resize(kShape.layers);
    for (int layer = 0; layer < kShape.layers; ++layer) {
      for (int tensor = 0; tensor < kThresholdTensors; ++tensor) {
        const auto base = static_cast<float>(100 * layer + 10 * tensor);
        ChannelThresholds& channels = set.layers[layer][tensor];
        channels.lower = ramp(kShape.width(), base, 0.5f);
        channels.upper = ramp(kShape.width(), base + 5, 0.5f);
        channels.minimum = ramp(kShape.width(), base - 1, 0.5f);
        channels.maximum = ramp(kShape.width(), base + 6, 0.5f);
        channels.outlier_rate = fraction;
        channels.capped_outlier_rate = fraction / 2;
        channels.online_outlier_rate = fraction * 2;
      }
    }
    file.sets.push_back(set);
  }
  return file;
}

CalibrationHeader sample_calibration_header(std::int64_t sequences, std::int64_t seqlen) {
  CalibrationHeader header;
  header.provenance = sample_provenance();
  header.shape = kShape;
  header.rope = sample_rope();
  header.sequences = sequences;
  header.seqlen = seqlen;
  header.bos = "window";
  for (std::int64_t index = 0; index < sequences * seqlen; ++index)
    header.tokens.push_back(static_cast<std::int32_t>(3 * index));
  for (std::int64_t index = 0; index < sequences; ++index) {
    header.domains.push_back(index % 2 ? "code" : "prosa-ä");
    header.loss.push_back(2.5 + static_cast<double>(index));
  }
  return header;
}

CalibrationLayer sample_calibration_layer(const CalibrationHeader& header, int layer) {
  const auto tokens = header.total_tokens();
  const auto elements = static_cast<int>(tokens * header.shape.width());
  CalibrationLayer data;
  int tensor = 0;
  for (ScaledHalf* target : {&data.key, &data.value, &data.key_grad, &data.value_grad}) {
    target->scale = 0.5f * static_cast<float>(1 << tensor);
    // Layer 0: patterns. Layer 1: low bytes are noise, which is stored as it is. Layer 2: all equal.
    Rng rng(static_cast<std::uint64_t>(tensor));
    for (int element = 0; element < elements; ++element) {
      const float pattern = static_cast<float>((element * 7 + tensor * 13) % 2001 - 1000);
      const float value = layer == 0 ? pattern : layer == 1 ? static_cast<float>(rng.uniform() - 0.5) : 3.0f;
      target->values.push_back(float_to_half(value));
    }
    ++tensor;
  }
  const int moments = header.shape.kv_heads * header.shape.head_dim * header.shape.head_dim;
  for (int index = 0; index < moments; ++index) data.query_moment.push_back(0.1 * index + layer);
  if (header.metrics) {
    const int dim = header.shape.head_dim;
    for (int index = 0; index < moments; ++index) {
      const int low = std::min(index / dim % dim, index % dim), high = std::max(index / dim % dim, index % dim);
      data.key_metric.push_back(low == high ? 3.0 + low : 0.01 * (7 * low + high) - 0.2 * layer);
      data.value_metric.push_back(low == high ? 5.0 + layer : 0.03 * (high - low) + 0.1 * layer);
    }
  }
  for (std::int64_t token = 0; token < tokens; ++token)
    data.attention_mass.push_back(static_cast<float>(header.shape.heads) + (token % 2 == 0 ? 0.25f : -0.25f));
  return data;
}

void write_sample_calibration(const std::filesystem::path& path, const CalibrationHeader& header, int threads,
                              bool force) {
  CalibrationWriter writer(path, force, threads);
  writer.write_header(header);
  for (int layer = 0; layer < header.shape.layers; ++layer)
    writer.write_layer(layer, sample_calibration_layer(header, layer));
  writer.finish();
}

void edit(const std::filesystem::path& path, const std::function<void(hid_t)>& change) {
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  REQUIRE(file >= 0);
  change(file);
  REQUIRE(H5Fclose(file) >= 0);
}

void overwrite(hid_t file, const char* dataset, std::size_t index, float value) {
  const hid_t id = H5Dopen2(file, dataset, H5P_DEFAULT);
  REQUIRE(id >= 0);
  std::vector<float> data(H5Dget_storage_size(id) / sizeof(float));
  REQUIRE(index < data.size());
  REQUIRE(H5Dread(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0);
  data[index] = value;
  REQUIRE(H5Dwrite(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()) >= 0);
  H5Dclose(id);
}

namespace {
void put_attribute(hid_t file, const char* name, hid_t type, const void* value) {
  if (H5Aexists(file, name) > 0) H5Adelete(file, name);
  const hid_t space = H5Screate(H5S_SCALAR);
  const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
  REQUIRE(H5Awrite(attribute, type, value) >= 0);
  H5Aclose(attribute);
  H5Sclose(space);
}
}  // namespace

void replace_attribute(hid_t file, const char* name, const std::string& text) {
  const hid_t type = H5Tcopy(H5T_C_S1);
  H5Tset_size(type, text.size() + 1);
  put_attribute(file, name, type, text.c_str());
  H5Tclose(type);
}
void replace_attribute(hid_t file, const char* name, std::int64_t value) {
  put_attribute(file, name, H5T_NATIVE_INT64, &value);
}
void replace_attribute(hid_t file, const char* name, double value) {
  put_attribute(file, name, H5T_NATIVE_DOUBLE, &value);
}

void replace_dataset(hid_t file, const char* name, hid_t type, const std::vector<hsize_t>& shape) {
  REQUIRE(H5Ldelete(file, name, H5P_DEFAULT) >= 0);
  const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  const hid_t id = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  const std::vector<char> zeros(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)) * H5Tget_size(type));
  REQUIRE(H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, zeros.data()) >= 0);
  H5Dclose(id);
  H5Sclose(space);
}

std::string refusal(const Read& read, const std::filesystem::path& path) {
  try {
    read(path);
  } catch (const Error& error) {
    CHECK(exit_code(error.kind()) == 2);
    return error.what();
  }
  return "";
}

void read_whole_quantizer(const std::filesystem::path& path) { read_quantizer(path); }
void read_whole_thresholds(const std::filesystem::path& path) { read_thresholds(path); }
void read_whole_calibration(const std::filesystem::path& path) {
  const CalibrationReader reader(path);
  for (int layer = 0; layer < reader.header().shape.layers; ++layer) {
    for (Side side : kSides) {
      reader.values(layer, side);
      if (reader.header().gradients) reader.gradients(layer, side);
      if (reader.header().metrics) reader.metric(layer, side);
    }
    reader.query_moment(layer);
    reader.attention_mass(layer);
  }
}

}  // namespace kvq::test
