#include <kvq/model/model_source.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/formats/gguf.h>
#include <kvq/formats/hf_folder.h>

namespace kvq {

namespace {

using Shape = std::vector<std::int64_t>;

std::string shape_text(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// Every tensor that the configuration asks for, with its shape.
std::map<std::string, Shape> expected_tensors(const ModelSource& source) {
  const ModelConfig& config = source.config;
  const TensorNames& names = *source.names;
  const LayerTensorNames& part = names.layer;
  const std::int64_t hidden = config.hidden, width = config.kv.width();
  const std::int64_t query_width = std::int64_t{config.kv.heads} * config.kv.head_dim;
  std::map<std::string, Shape> expected = {{names.embedding, {config.vocab, hidden}}, {names.output_norm, {hidden}}};
  if (!config.tied_embeddings) expected[names.output] = {config.vocab, hidden};
  for (int layer = 0; layer < config.kv.layers; ++layer) {
    expected[names.of(layer, part.attention_norm)] = {hidden};
    expected[names.of(layer, part.q)] = {query_width, hidden};
    expected[names.of(layer, part.k)] = {width, hidden};
    expected[names.of(layer, part.v)] = {width, hidden};
    expected[names.of(layer, part.o)] = {hidden, query_width};
    expected[names.of(layer, part.mlp_norm)] = {hidden};
    expected[names.of(layer, part.gate)] = {config.intermediate, hidden};
    expected[names.of(layer, part.up)] = {config.intermediate, hidden};
    expected[names.of(layer, part.down)] = {hidden, config.intermediate};
    if (config.attention_bias) {
      expected[names.of(layer, part.q, ".bias")] = {query_width};
      expected[names.of(layer, part.k, ".bias")] = {width};
      expected[names.of(layer, part.v, ".bias")] = {width};
    }
    if (config.output_bias) expected[names.of(layer, part.o, ".bias")] = {hidden};
  }
  if (config.qk_norm) {
    for (int layer = 0; layer < config.kv.layers; ++layer)
      expected[names.of(layer, part.q_norm)] = expected[names.of(layer, part.k_norm)] = {config.kv.head_dim};
  }
  if (config.post_norms) {
    for (int layer = 0; layer < config.kv.layers; ++layer)
      expected[names.of(layer, part.post_attention_norm)] = expected[names.of(layer, part.post_mlp_norm)] = {hidden};
  }
  return expected;
}

bool ignorable(const ModelSource& source, const std::string& name) {
  if (name == source.names->output) return true;  // a folder of a tied model may carry the matrix a second time
  for (const char* ending : source.names->ignored) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

void check_tensors(ModelSource& source) {
  const std::string path = source.path.string();
  const auto expected = expected_tensors(source);
  std::int64_t parameters = 0;
  for (const auto& [name, shape] : expected) {
    const TensorInfo* info = source.tensors->find(name);
    if (!info) fail(ErrorKind::Format, fmt::format("{}: tensor {} is missing", path, name));
    if (info->shape != shape) {
      const bool by_vocabulary = name == source.names->embedding || name == source.names->output;
      fail(ErrorKind::Format,
           fmt::format("{}: tensor {} has shape {}; the configuration asks for {}{}", path, name,
                       shape_text(info->shape), shape_text(shape), by_vocabulary ? " (vocab_size x hidden_size)" : ""));
    }
    std::int64_t count = 1;
    for (std::int64_t size : shape) count *= size;
    parameters += count;
  }
  // A weight that the forward pass would leave out means another model than the one this code computes.
  for (const std::string& name : source.tensors->names()) {
    if (!expected.contains(name) && !ignorable(source, name)) {
      fail(ErrorKind::Input, fmt::format("{}: tensor {} is not supported: architecture {} has no such part", path, name,
                                         source.architecture->name));
    }
  }
  source.config.parameters = parameters;
}

}  // namespace

void check_config(const ModelConfig& config, const std::string& file, const char* heads_field,
                  const char* kv_heads_field, const char* head_dim_field) {
  const KvShape& kv = config.kv;
  if (kv.heads % kv.kv_heads != 0) {
    fail(ErrorKind::Format, fmt::format("{}: {} = {} is not a multiple of {} = {}", file, heads_field, kv.heads,
                                        kv_heads_field, kv.kv_heads));
  }
  if (kv.head_dim % 2 != 0) {
    fail(ErrorKind::Format,
         fmt::format("{}: {} = {} is odd; RoPE needs an even number", file, head_dim_field, kv.head_dim));
  }
  if (std::int64_t{kv.heads} * kv.head_dim > kMaxDimension) {
    fail(ErrorKind::Format, fmt::format("{}: {} = {} times {} = {} is more than {}", file, heads_field, kv.heads,
                                        head_dim_field, kv.head_dim, kMaxDimension));
  }
}

void take_features(ModelSource& source) {
  const Architecture& architecture = *source.architecture;
  ModelConfig& config = source.config;
  config.architecture = architecture.name;
  config.qk_norm = architecture.qk_norm;
  config.post_norms = architecture.post_norms;
  config.activation = architecture.activation;
  if (architecture.scales_embeddings) config.embedding_scale = std::sqrt(static_cast<double>(config.hidden));
}

std::vector<std::uint8_t> every_nth_sees_all(int layers, int nth) {
  std::vector<std::uint8_t> is_local;
  for (int layer = 0; layer < layers; ++layer) is_local.push_back((layer + 1) % nth != 0);
  return is_local;
}

void set_local_layers(ModelRope& rope, std::vector<std::uint8_t> is_local, std::int64_t window,
                      const RopeParams& local) {
  if (std::find(is_local.begin(), is_local.end(), 1) == is_local.end()) return;
  rope.is_local = std::move(is_local);
  rope.window = window;
  rope.local = local;
}

ModelSource open_model_source(const std::filesystem::path& path) {
  ModelSource source;
  source.path = path;
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    auto folder = std::make_unique<HfFolder>(path);
    read_hf_config(*folder, source);
    source.tensors = std::move(folder);
  } else if (is_gguf(path)) {
    auto file = std::make_unique<GgufFile>(path);
    read_gguf_config(*file, source);
    source.tensors = std::move(file);
  } else {
    fail(ErrorKind::Format, fmt::format("{}: neither a GGUF file nor a Hugging Face model folder", path.string()));
  }
  check_tensors(source);
  return source;
}

std::string model_sha256(const ModelSource& source) {
  const auto& files = source.files;
  if (files.size() == 1 && files.front() == source.path) return sha256_of_file(files.front());
  std::string listing;
  for (const auto& file : files) listing += fmt::format("{} {}\n", file.filename().string(), sha256_of_file(file));
  return sha256_of(listing);
}

ModelConfig read_model_config(const std::filesystem::path& path) { return open_model_source(path).config; }

}  // namespace kvq
