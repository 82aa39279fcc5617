#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/gguf.h>
#include <kvq/model/model_source.h>

namespace kvq {

namespace {

constexpr const char* kRopeFactors = "rope_freqs.weight";

class Keys {
 public:
  Keys(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

  std::string full(const char* key) const { return prefix_ + key; }
  std::string where(const char* key) const { return fmt::format("{}: {}", file_.path().string(), full(key)); }

  std::optional<int> dimension(const char* key) const {
    const GgufValue* stored = file_.metadata(full(key));
    if (!stored) return std::nullopt;
    std::int64_t value = 0;
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(stored)) {
      // Some writers repeat a size for every layer; layers that differ are another architecture.
      if (list->empty() ||
          std::any_of(list->begin(), list->end(), [&](auto entry) { return entry != list->front(); })) {
        fail(ErrorKind::Input, fmt::format("{} differs between layers, which is not supported", where(key)));
      }
      value = list->front();
    } else {
      value = file_.require_int(full(key));
    }
    if (value < 1 || value > kMaxDimension) {
      fail(ErrorKind::Format,
           fmt::format("{} is {}; an integer from 1 to {} is expected", where(key), value, kMaxDimension));
    }
    return static_cast<int>(value);
  }
  int require_dimension(const char* key) const {
    const auto value = dimension(key);
    if (!value) fail(ErrorKind::Format, fmt::format("{} is missing", where(key)));
    return *value;
  }
  std::optional<double> positive(const char* key) const {
    const auto value = file_.find_double(full(key));
    if (value && !(*value > 0 && std::isfinite(*value))) {
      fail(ErrorKind::Format, fmt::format("{} is {}; a positive number is expected", where(key), *value));
    }
    return value;
  }
  double require_positive(const char* key) const {
    const auto value = positive(key);
    if (!value) fail(ErrorKind::Format, fmt::format("{} is missing", where(key)));
    return *value;
  }
  template <class Value>
  [[noreturn]] void refuse(const char* key, const Value& value, const char* why) const {
    fail(ErrorKind::Input, fmt::format("{} = {} is not supported; {}", where(key), value, why));
  }

 private:
  const GgufFile& file_;
  std::string prefix_;
};

void refuse_unsupported(const GgufFile& file, const Keys& keys, const Architecture& architecture) {
  std::vector<const char*> zero = {"expert_count"};
  if (architecture.local_layers == LocalPattern::None) zero.push_back("attention.sliding_window");
  for (const char* key : zero) {
    const auto value = file.find_int(keys.full(key));
    if (value.value_or(0) != 0) keys.refuse(key, *value, "0 or no such key is expected");
  }
  for (const char* key : {"attention.scale", "residual_scale", "embedding_scale", "logit_scale",
                          "final_logit_softcapping", "attn_logit_softcapping"}) {
    if (const auto value = file.find_double(keys.full(key))) keys.refuse(key, *value, "no such key is expected");
  }
}

/// The stretch of each pair of channels as Llama 3.1 defines it.
double llama3_stretch(double frequency, const RopeParams& llama3) {
  const double turns = llama3.original_context * frequency / (2.0 * std::numbers::pi);
  if (turns < llama3.low_freq_factor) return llama3.factor;
  if (turns > llama3.high_freq_factor) return 1.0;
  const double blend = (turns - llama3.low_freq_factor) / (llama3.high_freq_factor - llama3.low_freq_factor);
  return 1.0 / ((1.0 - blend) / llama3.factor + blend);
}

/// GGUF stores llama3 scaling as one divisor per pair. The parameters behind them are recovered, because artifacts and
/// the Hugging Face form of a model name RoPE by parameters; divisors that no llama3 scaling makes are refused, not
/// dropped.
void apply_rope_factors(const GgufFile& file, RopeParams& rope) {
  const TensorInfo* info = file.find(kRopeFactors);
  if (!info) return;
  const std::string where = fmt::format("{}: {}", file.path().string(), kRopeFactors);
  const int pairs = rope.rotary_dim / 2;
  if (info->shape != std::vector<std::int64_t>{pairs}) {
    fail(ErrorKind::Format, fmt::format("{} must have one dimension of {}", where, pairs));
  }
  std::vector<float> factors(pairs);
  file.read_rows(kRopeFactors, 0, pairs, factors);
  const float largest = *std::max_element(factors.begin(), factors.end());
  const float smallest = *std::min_element(factors.begin(), factors.end());
  if (smallest == 1.0f && largest == 1.0f) return;
  if (rope.kind != "default") {
    fail(ErrorKind::Input, fmt::format("{} together with rope.scaling.type '{}' is not supported", where, rope.kind));
  }
  RopeParams llama3 = rope;
  llama3.kind = "llama3";
  llama3.factor = largest;
  llama3.low_freq_factor = 1.0;
  llama3.high_freq_factor = 4.0;
  llama3.original_context = 8192;
  const std::vector<double> frequencies = rope.inverse_frequencies();
  for (int pair = 0; pair < pairs; ++pair) {
    const double expected = llama3_stretch(frequencies[pair], llama3);
    if (!(std::abs(factors[pair] - expected) <= 1e-3 * expected)) {
      fail(ErrorKind::Input,
           fmt::format("{}: divisor {} of pair {} is not supported; llama3 scaling (8192, 1, 4) by {} would "
                       "have {:.6g}",
                       where, factors[pair], pair, largest, expected));
    }
  }
  rope = llama3;
}

RopeParams read_rope(const GgufFile& file, const Keys& keys, int head_dim) {
  RopeParams rope;
  rope.rotary_dim = head_dim;
  rope.theta = keys.positive("rope.freq_base").value_or(10000.0);
  const int rotated = keys.dimension("rope.dimension_count").value_or(head_dim);
  if (rotated != head_dim) keys.refuse("rope.dimension_count", rotated, "all channels of a head must rotate");
  const std::string type = file.find_string(keys.full("rope.scaling.type")).value_or("none");
  const auto old_factor = keys.positive("rope.scale_linear");
  if (type == "linear") {
    rope.kind = "linear";
    rope.factor = keys.require_positive("rope.scaling.factor");
  } else if (type != "none") {
    keys.refuse("rope.scaling.type", type, "known: none, linear (and llama3 by rope_freqs.weight)");
  } else if (old_factor && *old_factor != 1.0) {
    rope.kind = "linear";
    rope.factor = *old_factor;
  }
  apply_rope_factors(file, rope);
  return rope;
}

/// Which layers are local, in the words of llama.cpp: every nth layer sees everything, or a list of what is local.
std::vector<std::uint8_t> local_layers_of(const GgufFile& file, const Keys& keys, int layers) {
  constexpr const char* kKey = "attention.sliding_window_pattern";
  const GgufValue* stored = file.metadata(keys.full(kKey));
  if (!stored) return every_nth_sees_all(layers, 6);
  const auto* list = std::get_if<std::vector<std::int64_t>>(stored);
  if (!list) return every_nth_sees_all(layers, keys.require_dimension(kKey));
  if (static_cast<int>(list->size()) != layers ||
      std::any_of(list->begin(), list->end(), [](auto entry) { return entry != 0 && entry != 1; })) {
    fail(ErrorKind::Format, fmt::format("{}: {} entries of 0 or 1 are expected", keys.where(kKey), layers));
  }
  return {list->begin(), list->end()};
}

void read_local_layers(const GgufFile& file, const Keys& keys, ModelConfig& config) {
  RopeParams local;
  local.rotary_dim = config.kv.head_dim;
  local.theta = keys.positive("rope.freq_base_swa").value_or(10000.0);
  const std::int64_t window = keys.require_dimension("attention.sliding_window");
  set_local_layers(config.rope, local_layers_of(file, keys, config.kv.layers), window, local);
  // What 1 / √query_pre_attn_scalar is: the file has no key for it. Only the model of 27B, with its 62 layers, departs
  // from 1 / √head_dim.
  constexpr int kLayersOf27B = 62;
  if (config.kv.layers == kLayersOf27B) {
    config.query_scale = std::sqrt(config.kv.head_dim / (static_cast<double>(config.hidden) / config.kv.heads));
  }
}

}  // namespace

void read_gguf_config(const GgufFile& file, ModelSource& source) {
  const std::string path = file.path().string();
  source.architecture = &architecture_of_gguf(file.require_string("general.architecture"), path);
  source.names = &source.architecture->gguf;
  source.qk_permuted = source.architecture->gguf_permutes_qk;
  source.files = {file.path()};
  const Keys keys(file, source.architecture->gguf_name);
  const Architecture& architecture = *source.architecture;
  refuse_unsupported(file, keys, architecture);

  ModelConfig& config = source.config;
  config.hidden = keys.require_dimension("embedding_length");
  config.intermediate = keys.require_dimension("feed_forward_length");
  config.kv.layers = keys.require_dimension("block_count");
  config.kv.heads = keys.require_dimension("attention.head_count");
  config.kv.kv_heads = keys.dimension("attention.head_count_kv").value_or(config.kv.heads);
  if (const auto key_length = keys.dimension("attention.key_length")) {
    config.kv.head_dim = *key_length;
  } else if (config.hidden % config.kv.heads == 0) {
    config.kv.head_dim = config.hidden / config.kv.heads;
  } else {
    fail(ErrorKind::Format,
         fmt::format("{} is {}, not a divisor of {} = {}, and {} is not given", keys.where("attention.head_count"),
                     config.kv.heads, keys.full("embedding_length"), config.hidden, keys.full("attention.key_length")));
  }
  if (const int value_length = keys.dimension("attention.value_length").value_or(config.kv.head_dim);
      value_length != config.kv.head_dim) {
    keys.refuse("attention.value_length", value_length, "keys and values must have the same head size");
  }
  config.norm_eps = keys.require_positive("attention.layer_norm_rms_epsilon");
  config.context = file.find_int(keys.full("context_length")).value_or(0);
  config.tied_embeddings = !file.find(source.names->output);
  config.attention_bias = file.find(source.names->of(0, source.names->layer.q, ".bias")) != nullptr;
  config.output_bias = file.find(source.names->of(0, source.names->layer.o, ".bias")) != nullptr;
  take_features(source);
  config.rope = read_rope(file, keys, config.kv.head_dim);
  if (architecture.local_layers != LocalPattern::None) read_local_layers(file, keys, config);

  const TensorInfo* embedding = file.find(source.names->embedding);
  if (!embedding) fail(ErrorKind::Format, fmt::format("{}: tensor {} is missing", path, source.names->embedding));
  config.vocab = keys.dimension("vocab_size").value_or(0);
  if (config.vocab == 0 && embedding->shape.size() == 2 && embedding->shape[0] <= kMaxDimension) {
    config.vocab = static_cast<int>(embedding->shape[0]);
  }
  const auto* tokens = file.find_strings("tokenizer.ggml.tokens");
  if (tokens && static_cast<std::int64_t>(tokens->size()) != config.vocab) {
    fail(ErrorKind::Format, fmt::format("{}: tokenizer.ggml.tokens has {} entries, but the model's vocabulary has {}",
                                        path, tokens->size(), config.vocab));
  }
  check_config(config, path, keys.full("attention.head_count").c_str(), keys.full("attention.head_count_kv").c_str(),
               keys.full("attention.key_length").c_str());
}

}  // namespace kvq
