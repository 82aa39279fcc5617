#pragma once
// The architectures this library knows, each described in one place: how files name it and its tensors, and in which
// order they store the rows of Q and K. Everything that differs between architectures or formats is read from here.

#include <string>
#include <vector>

#include <kvq/model/config.h>

namespace kvq {

/// Names of one layer's tensors after the layer prefix, without ".weight" or ".bias". Null: no such part.
struct LayerTensorNames {
  const char* attention_norm;
  const char* q;
  const char* k;
  const char* v;
  const char* o;
  const char* mlp_norm;
  const char* gate;
  const char* up;
  const char* down;
  const char* q_norm = nullptr;
  const char* k_norm = nullptr;
  const char* post_attention_norm = nullptr;  ///< of what attention adds to the residual stream
  const char* post_mlp_norm = nullptr;
};

struct TensorNames {
  const char* embedding;
  const char* output_norm;
  const char* output;        ///< absent from the file when tied
  const char* layer_prefix;  ///< the layer's number and a dot follow
  LayerTensorNames layer;
  std::vector<const char*> ignored;  ///< a tensor that ends like this holds nothing that is not computed anyway

  /// Full name of a layer's tensor; kind is ".weight" or ".bias".
  std::string of(int layer_index, const char* part, const char* kind = ".weight") const;
};

/// How an architecture says which of its layers see a window only.
enum class LocalPattern {
  None,        ///< all layers see everything; a file that asks for a window is refused
  EverySixth,  ///< every sixth layer sees everything, the others a window (Gemma 3)
};

struct Architecture {
  const char* name;                         ///< in this registry and in ModelConfig
  const char* gguf_name;                    ///< `general.architecture`, also the prefix of its keys
  std::vector<const char*> hf_model_types;  ///< `model_type` of config.json
  /// model_types whose config.json may leave out num_key_value_heads, which then means one per query head.
  std::vector<const char*> hf_kv_heads_optional;
  TensorNames hf, gguf;
  bool gguf_permutes_qk;  ///< GGUF stores rows 2j, 2j+1 of a Q or K head where Hugging Face has j, j + head_dim/2

  // What the block has that others lack.
  bool qkv_bias = false;          ///< biases of q, k and v without a field in config.json that says so
  bool hf_window_switch = false;  ///< `sliding_window` counts only together with `use_sliding_window`
  bool qk_norm = false;
  bool post_norms = false;
  Activation activation = Activation::Silu;
  bool scales_embeddings = false;  ///< by √hidden
  bool hf_tied = false;            ///< what config.json means when it does not say
  float hf_norm_offset = 0;        ///< folders hold norm weights w where w + this multiplies; GGUF holds the sum
  LocalPattern local_layers = LocalPattern::None;
};

const std::vector<Architecture>& architectures();

/// Throw Input: the message names the field, its value and what is known.
const Architecture& architecture_of_gguf(const std::string& general_architecture, const std::string& file);
const Architecture& architecture_of_hf(const std::string& model_type, const std::string& file);

}  // namespace kvq
