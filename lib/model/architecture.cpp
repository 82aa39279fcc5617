#include <kvq/model/architecture.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/core/error.h>

namespace kvq {

std::string TensorNames::of(int layer_index, const char* part, const char* kind) const {
  return fmt::format("{}{}.{}{}", layer_prefix, layer_index, part, kind);
}

namespace {

/// Names that most architectures share.
TensorNames hf_names() {
  return {.embedding = "model.embed_tokens.weight",
          .output_norm = "model.norm.weight",
          .output = "lm_head.weight",
          .layer_prefix = "model.layers.",
          .layer = {.attention_norm = "input_layernorm",
                    .q = "self_attn.q_proj",
                    .k = "self_attn.k_proj",
                    .v = "self_attn.v_proj",
                    .o = "self_attn.o_proj",
                    .mlp_norm = "post_attention_layernorm",
                    .gate = "mlp.gate_proj",
                    .up = "mlp.up_proj",
                    .down = "mlp.down_proj"},
          .ignored = {".rotary_emb.inv_freq"}};
}

TensorNames gguf_names() {
  return {.embedding = "token_embd.weight",
          .output_norm = "output_norm.weight",
          .output = "output.weight",
          .layer_prefix = "blk.",
          .layer = {.attention_norm = "attn_norm",
                    .q = "attn_q",
                    .k = "attn_k",
                    .v = "attn_v",
                    .o = "attn_output",
                    .mlp_norm = "ffn_norm",
                    .gate = "ffn_gate",
                    .up = "ffn_up",
                    .down = "ffn_down"},
          // Read together with the configuration.
          .ignored = {"rope_freqs.weight"}};
}

/// Llama 1-3, Mistral without a window, SmolLM2, TinyLlama.
Architecture llama() {
  return {.name = "llama",
          .gguf_name = "llama",
          .hf_model_types = {"llama", "mistral"},
          .hf_kv_heads_optional = {"llama"},
          .hf = hf_names(),
          .gguf = gguf_names(),
          .gguf_permutes_qk = true};
}

/// Qwen2, Qwen2.5.
Architecture qwen2() {
  return {.name = "qwen2",
          .gguf_name = "qwen2",
          .hf_model_types = {"qwen2"},
          .hf_kv_heads_optional = {},
          .hf = hf_names(),
          .gguf = gguf_names(),
          .gguf_permutes_qk = false,
          .qkv_bias = true,
          .hf_window_switch = true};
}

/// Qwen3 without experts.
Architecture qwen3() {
  Architecture architecture = {.name = "qwen3",
                               .gguf_name = "qwen3",
                               .hf_model_types = {"qwen3"},
                               .hf_kv_heads_optional = {},
                               .hf = hf_names(),
                               .gguf = gguf_names(),
                               .gguf_permutes_qk = false,
                               .hf_window_switch = true,
                               .qk_norm = true};
  architecture.hf.layer.q_norm = "self_attn.q_norm";
  architecture.hf.layer.k_norm = "self_attn.k_norm";
  architecture.gguf.layer.q_norm = "attn_q_norm";
  architecture.gguf.layer.k_norm = "attn_k_norm";
  return architecture;
}

/// The text models of Gemma 3.
Architecture gemma3() {
  Architecture architecture = qwen3();
  architecture.name = architecture.gguf_name = "gemma3";
  architecture.hf_model_types = {"gemma3_text"};
  architecture.hf.layer.mlp_norm = "pre_feedforward_layernorm";
  architecture.hf.layer.post_attention_norm = "post_attention_layernorm";
  architecture.hf.layer.post_mlp_norm = "post_feedforward_layernorm";
  architecture.gguf.layer.post_attention_norm = "post_attention_norm";
  architecture.gguf.layer.post_mlp_norm = "post_ffw_norm";
  architecture.post_norms = true;
  architecture.activation = Activation::GeluTanh;
  architecture.scales_embeddings = architecture.hf_tied = true;
  architecture.hf_norm_offset = 1;
  architecture.local_layers = LocalPattern::EverySixth;
  return architecture;
}

}  // namespace

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> registry = {llama(), qwen2(), qwen3(), gemma3()};
  return registry;
}

const Architecture& architecture_of_gguf(const std::string& general_architecture, const std::string& file) {
  std::vector<std::string> known;
  for (const Architecture& architecture : architectures()) {
    if (general_architecture == architecture.gguf_name) return architecture;
    known.push_back(architecture.gguf_name);
  }
  fail(ErrorKind::Input, fmt::format("{}: general.architecture '{}' is not supported; known: {}", file,
                                     general_architecture, fmt::join(known, ", ")));
}

const Architecture& architecture_of_hf(const std::string& model_type, const std::string& file) {
  std::vector<std::string> known;
  for (const Architecture& architecture : architectures()) {
    for (const char* type : architecture.hf_model_types) {
      if (model_type == type) return architecture;
      known.push_back(type);
    }
  }
  fail(ErrorKind::Input,
       fmt::format("{}: model_type '{}' is not supported; known: {}", file, model_type, fmt::join(known, ", ")));
}

}  // namespace kvq
