#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/formats/hf_folder.h>
#include <kvq/model/model_source.h>

namespace kvq {

namespace {

using nlohmann::json;

/// Typed access to an object of config.json; a field that is null counts as absent, as transformers writes both.
class Fields {
 public:
  Fields(const json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

  const json* find(const char* key) const {
    const auto entry = object_.find(key);
    return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
  }

  std::optional<std::int64_t> integer(const char* key, std::int64_t low, std::int64_t high) const {
    const json* value = find(key);
    if (!value) return std::nullopt;
    const bool fits =
        value->is_number_integer() &&
        (!value->is_number_unsigned() || value->get<std::uint64_t>() <= static_cast<std::uint64_t>(high)) &&
        value->get<std::int64_t>() >= low && value->get<std::int64_t>() <= high;
    if (!fits) bad(key, *value, fmt::format("an integer from {} to {} is expected", low, high));
    return value->get<std::int64_t>();
  }
  int require_dimension(const char* key) const {
    if (!find(key)) missing(key);
    return static_cast<int>(*integer(key, 1, kMaxDimension));
  }
  std::optional<double> positive(const char* key) const {
    const json* value = find(key);
    if (!value) return std::nullopt;
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>())) {
      bad(key, *value, "a positive number is expected");
    }
    return value->get<double>();
  }
  double require_positive(const char* key) const {
    if (!find(key)) missing(key);
    return *positive(key);
  }
  bool boolean(const char* key, bool fallback) const {
    const json* value = find(key);
    if (!value) return fallback;
    if (!value->is_boolean()) bad(key, *value, "true or false is expected");
    return value->get<bool>();
  }
  std::optional<std::string> text(const char* key) const {
    const json* value = find(key);
    if (!value) return std::nullopt;
    if (!value->is_string()) bad(key, *value, "a string is expected");
    return value->get<std::string>();
  }

  [[noreturn]] void bad(const char* key, const json& value, const std::string& expected) const {
    fail(ErrorKind::Format, fmt::format("{}: {}{} is {}; {}", file_, prefix_, key, shown(value), expected));
  }
  [[noreturn]] void refuse(const char* key, const std::string& why) const {
    fail(ErrorKind::Input,
         fmt::format("{}: {}{} = {} is not supported; {}", file_, prefix_, key, shown(object_.at(key)), why));
  }
  [[noreturn]] void missing(const char* key) const {
    fail(ErrorKind::Format, fmt::format("{}: {}{} is missing", file_, prefix_, key));
  }

 private:
  static std::string shown(const json& value) {
    const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() <= 80 ? text : text.substr(0, 77) + "...";
  }
  const json& object_;
  std::string file_, prefix_;
};

/// `rope_parameters` (transformers 5, theta inside) or `rope_scaling` (before, theta beside it).
RopeParams parse_rope(const json& object, const std::string& file, const char* key, double theta) {
  const std::string prefix = fmt::format("{}.", key);
  if (!object.is_object()) fail(ErrorKind::Format, fmt::format("{}: {} is not an object", file, key));
  const Fields fields(object, file, prefix);
  RopeParams rope;
  rope.theta = fields.positive("rope_theta").value_or(theta);
  const char* kind_key = fields.find("rope_type") ? "rope_type" : "type";
  rope.kind = fields.text(kind_key).value_or("default");
  if (rope.kind != "default" && rope.kind != "linear" && rope.kind != "llama3") {
    // Also catches tables with one entry per kind of layer, which have no rope_type of their own.
    fields.refuse(kind_key, "known: default, linear, llama3");
  }
  for (const auto& [name, value] : object.items()) {
    if (value.is_object()) fields.refuse(name.c_str(), "one set of RoPE parameters for all layers is expected");
  }
  if (fields.positive("partial_rotary_factor").value_or(1.0) != 1.0) {
    fields.refuse("partial_rotary_factor", "all channels of a head must rotate (1.0)");
  }
  if (rope.kind == "default") return rope;
  rope.factor = fields.require_positive("factor");
  if (rope.kind == "llama3") {
    rope.low_freq_factor = fields.require_positive("low_freq_factor");
    rope.high_freq_factor = fields.require_positive("high_freq_factor");
    rope.original_context = fields.require_positive("original_max_position_embeddings");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      fields.bad("high_freq_factor", object.at("high_freq_factor"), "it must be greater than low_freq_factor");
    }
  }
  return rope;
}

/// One embedding for all layers.
RopeParams read_rope(const Fields& fields, const std::string& file) {
  // 10000 is what the published Llama 1 and 2 configurations leave out.
  const double theta = fields.positive("rope_theta").value_or(10000.0);
  const json* parameters = fields.find("rope_parameters");
  const json* scaling = fields.find("rope_scaling");
  RopeParams rope;
  rope.theta = theta;
  if (parameters) rope = parse_rope(*parameters, file, "rope_parameters", theta);
  if (scaling) {
    const RopeParams old_style = parse_rope(*scaling, file, "rope_scaling", theta);
    if (parameters && old_style != rope) {
      fail(ErrorKind::Format, fmt::format("{}: rope_parameters and rope_scaling contradict each other", file));
    }
    rope = old_style;
  }
  return rope;
}

/// Gemma 3: layers that see everything and layers that see a window have an embedding each.
struct RopePair {
  RopeParams everywhere, local;
};
RopePair read_rope_pair(const Fields& fields, const std::string& file) {
  RopePair pair;
  pair.everywhere.theta = fields.positive("rope_theta").value_or(1e6);
  pair.local.theta = fields.positive("rope_local_base_freq").value_or(1e4);
  const json* parameters = fields.find("rope_parameters");
  if (parameters) {  // as transformers 5 writes it, one entry per kind of layer
    if (!parameters->is_object()) fail(ErrorKind::Format, fmt::format("{}: rope_parameters is not an object", file));
    for (const auto& [name, value] : parameters->items()) {
      RopeParams& rope = name == "full_attention" ? pair.everywhere : pair.local;
      if (name != "full_attention" && name != "sliding_attention") {
        fields.refuse("rope_parameters", "entries full_attention and sliding_attention are expected");
      }
      if (!value.is_null()) rope = parse_rope(value, file, fmt::format("rope_parameters.{}", name).c_str(), rope.theta);
    }
  }
  if (const json* scaling = fields.find("rope_scaling")) {
    const RopeParams old_style = parse_rope(*scaling, file, "rope_scaling", pair.everywhere.theta);
    if (parameters && old_style != pair.everywhere) {
      fail(ErrorKind::Format, fmt::format("{}: rope_parameters and rope_scaling contradict each other", file));
    }
    pair.everywhere = old_style;
  }
  return pair;
}

/// By layer, from `layer_types`; empty when the field is not there.
std::vector<std::uint8_t> local_layers_of(const Fields& fields, int layers) {
  const json* types = fields.find("layer_types");
  if (!types) return {};
  if (!types->is_array() || types->size() != static_cast<std::size_t>(layers))
    fields.bad("layer_types", *types, fmt::format("a list of {} is expected", layers));
  std::vector<std::uint8_t> is_local;
  for (const json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention")
      fields.refuse("layer_types", "known: full_attention, sliding_attention");
    is_local.push_back(type == "sliding_attention");
  }
  return is_local;
}

void read_local_layers(const Fields& fields, const std::string& file, ModelConfig& config) {
  const RopePair rope = read_rope_pair(fields, file);
  config.rope = rope.everywhere;
  if (!fields.find("sliding_window")) fields.missing("sliding_window");
  const std::int64_t window = *fields.integer("sliding_window", 1, INT64_MAX);
  std::vector<std::uint8_t> is_local = local_layers_of(fields, config.kv.layers);
  if (is_local.empty()) {
    const int nth = static_cast<int>(fields.integer("sliding_window_pattern", 1, kMaxDimension).value_or(6));
    is_local = every_nth_sees_all(config.kv.layers, nth);
  }
  set_local_layers(config.rope, std::move(is_local), window, rope.local);
  config.rope.local.rotary_dim = config.rope.has_local_layers() ? config.kv.head_dim : 0;
  config.query_scale = std::sqrt(config.kv.head_dim / fields.positive("query_pre_attn_scalar").value_or(256.0));
}

/// For architectures all of whose layers see everything. Qwen's files name a window that use_sliding_window turns off.
void refuse_windows(const Fields& fields, const Architecture& architecture, int layers) {
  const std::vector<std::uint8_t> is_local = local_layers_of(fields, layers);
  if (std::find(is_local.begin(), is_local.end(), 1) != is_local.end())
    fields.refuse("layer_types", "only full_attention is known for this model_type");
  if (!architecture.hf_window_switch) {
    if (fields.find("sliding_window")) fields.refuse("sliding_window", "full attention (null) is expected");
  } else if (is_local.empty() && fields.boolean("use_sliding_window", false) && fields.find("sliding_window") &&
             fields.integer("max_window_layers", 0, INT64_MAX).value_or(28) < layers) {
    fields.refuse("use_sliding_window", "full attention (false) is expected");
  }
}

void refuse_unsupported(const Fields& fields, const Architecture& architecture) {
  if (fields.find("quantization_config"))
    fields.refuse("quantization_config", "weights must be unquantized (or a GGUF file)");
  if (architecture.activation == Activation::GeluTanh) {
    const std::string activation = fields.text("hidden_activation").value_or("gelu_pytorch_tanh");
    if (activation != "gelu_pytorch_tanh") fields.refuse("hidden_activation", "known: gelu_pytorch_tanh");
  } else {
    const std::string activation = fields.text("hidden_act").value_or("silu");
    if (activation != "silu" && activation != "swish") fields.refuse("hidden_act", "known: silu");
  }
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (fields.find(key)) fields.refuse(key, "uncapped logits (null) are expected");
  }
  if (fields.boolean("use_bidirectional_attention", false))
    fields.refuse("use_bidirectional_attention", "causal attention (false) is expected");
  if (fields.boolean("mlp_bias", false)) fields.refuse("mlp_bias", "an MLP without bias (false) is expected");
  if (fields.positive("partial_rotary_factor").value_or(1.0) != 1.0) {
    fields.refuse("partial_rotary_factor", "all channels of a head must rotate (1.0)");
  }
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"}) {
    if (fields.find(key)) fields.refuse(key, "mixture-of-experts models are not known");
  }
}

}  // namespace

void read_hf_config(const HfFolder& folder, ModelSource& source) {
  const std::string file = (folder.path() / "config.json").string();
  if (!folder.config().is_object()) fail(ErrorKind::Format, fmt::format("{}: not a JSON object", file));
  const Fields fields(folder.config(), file);
  const auto model_type = fields.text("model_type");
  if (!model_type) fields.missing("model_type");
  source.architecture = &architecture_of_hf(*model_type, file);
  source.names = &source.architecture->hf;
  source.qk_permuted = false;
  source.files = folder.model_files();
  const Architecture& architecture = *source.architecture;
  refuse_unsupported(fields, architecture);
  source.norm_offset = architecture.hf_norm_offset;

  ModelConfig& config = source.config;
  config.hidden = fields.require_dimension("hidden_size");
  config.intermediate = fields.require_dimension("intermediate_size");
  config.vocab = fields.require_dimension("vocab_size");
  config.kv.layers = fields.require_dimension("num_hidden_layers");
  config.kv.heads = fields.require_dimension("num_attention_heads");
  const auto& optional = architecture.hf_kv_heads_optional;
  const bool may_lack_kv_heads = std::find(optional.begin(), optional.end(), *model_type) != optional.end();
  config.kv.kv_heads = !fields.find("num_key_value_heads") && may_lack_kv_heads
                           ? config.kv.heads
                           : fields.require_dimension("num_key_value_heads");
  if (fields.find("head_dim") || architecture.qk_norm) {  // which have no default that holds for all
    config.kv.head_dim = fields.require_dimension("head_dim");
  } else if (config.hidden % config.kv.heads == 0) {
    config.kv.head_dim = config.hidden / config.kv.heads;
  } else {
    fail(ErrorKind::Format,
         fmt::format("{}: hidden_size {} is not a multiple of num_attention_heads {}, and head_dim is not given", file,
                     config.hidden, config.kv.heads));
  }
  config.norm_eps = fields.require_positive("rms_norm_eps");
  config.context = fields.integer("max_position_embeddings", 1, INT64_MAX).value_or(0);
  config.tied_embeddings = fields.boolean("tie_word_embeddings", architecture.hf_tied);
  config.output_bias = fields.boolean("attention_bias", false);
  config.attention_bias = config.output_bias || architecture.qkv_bias;
  take_features(source);
  if (architecture.local_layers == LocalPattern::None) {
    refuse_windows(fields, architecture, config.kv.layers);
    config.rope = read_rope(fields, file);
  } else {
    read_local_layers(fields, file, config);
  }
  config.rope.rotary_dim = config.kv.head_dim;
  check_config(config, file, "num_attention_heads", "num_key_value_heads", "head_dim");
}

}  // namespace kvq
