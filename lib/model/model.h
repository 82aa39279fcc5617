#pragma once
// A decoder-only transformer, run layer by layer: weights are memory-mapped and expanded when a layer needs them.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/model/attention_backend.h>
#include <kvq/model/config.h>
#include <kvq/model/device.h>

namespace kvq {

enum class Dtype { Fp32, Bf16 };
Dtype parse_dtype(const std::string& word);  ///< throws Usage
const char* dtype_name(Dtype dtype);

struct ModelOptions {
  Dtype dtype = Dtype::Fp32;  ///< of weights and linear layers; norms, softmax, residuals' sums and losses are fp32
  /// Bytes of expanded layer weights that may stay in memory; the rest is expanded again at each use. -1: half of the
  /// memory that is available on the device when the model is opened.
  std::int64_t weight_budget_bytes = -1;
  Device device = Device::Cpu;  ///< opened before (open_device)
};

/// Not thread-safe. Hidden states are `[tokens, hidden]` fp32; they, and all that backends and observers are handed,
/// are on the model's device.
class Model {
 public:
  virtual ~Model() = default;
  virtual const ModelConfig& config() const = 0;
  virtual Device device() const { return Device::Cpu; }
  /// What expanded weights that are to stay, and are not there yet, will take.
  virtual std::int64_t weight_bytes_to_come() const { return 0; }
  /// SHA-256 over the file (GGUF) or over config and weight files (folder).
  virtual std::string sha256() const = 0;

  virtual at::Tensor embed(const std::vector<std::int32_t>& ids) = 0;

  /// One block. When gradients are enabled they flow to `hidden` and to what the observer sees; weights are frozen.
  /// `observer` may be null.
  virtual at::Tensor layer_forward(int layer, const at::Tensor& hidden, std::int64_t first_position,
                                   AttentionBackend& attention, KvObserver* observer) = 0;
  /// Expands the layer's weights now, so that several layer_forward calls with it share them.
  virtual void load_layer(int layer) = 0;

  /// The matrices that layer_forward multiplies with, in the dtype of the computation: q, k and v in one `[query_width
  /// + 2 kv_width, hidden]`, o, gate and up in one `[2 intermediate, hidden]`, down. The tensors themselves, so that a
  /// caller may ask for their gradients; another layer may take their place when it is run. Empty: a model without.
  virtual std::vector<at::Tensor> block_tensors(int layer);

  /// Logits `[tokens, vocab]` fp32 of final hidden states (final norm included). For a few tokens at a time: callers
  /// go through long windows in chunks (see loss.h).
  virtual at::Tensor logits(const at::Tensor& hidden) = 0;
};

/// GGUF file or Hugging Face folder. Throws Input/Format; an architecture, RoPE kind, activation or window that is not
/// supported is refused by the name of the field.
std::unique_ptr<Model> load_model(const std::filesystem::path& path, const ModelOptions& options);

}  // namespace kvq
