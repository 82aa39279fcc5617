#include <kvq/model/architecture.h>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/core/error.h>

namespace kvq {

std::string TensorNames::of(int layer_index, const char* part, const char* kind) const {
  return fmt::format("{}{}.{}{}", layer_prefix, layer_index, part, kind);
}

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> registry = {
      // Llama 1-3, Mistral without a window, SmolLM2, TinyLlama.
      {.name = "llama",
       .gguf_name = "llama",
       .hf_model_types = {"llama", "mistral"},
       .hf_kv_heads_optional = {"llama"},
       .hf = {.embedding = "model.embed_tokens.weight",
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
              .ignored = {".rotary_emb.inv_freq"}},
       .gguf = {.embedding = "token_embd.weight",
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
                .ignored = {"rope_freqs.weight"}},
       .gguf_permutes_qk = true},
  };
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
