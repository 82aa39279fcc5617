#pragma once
// An opened model file or folder: what it is, and its tensors under one set of names.

#include <filesystem>
#include <memory>
#include <string>

#include <kvq/formats/tensor_source.h>
#include <kvq/model/architecture.h>
#include <kvq/model/config.h>

namespace kvq {

class GgufFile;
class HfFolder;

struct ModelSource {
  std::filesystem::path path;
  const Architecture* architecture = nullptr;
  const TensorNames* names = nullptr;  ///< of this format
  bool qk_permuted = false;            ///< rows of Q and K must be put in Hugging Face's order
  float norm_offset = 0;               ///< what is added to norm weights: some files hold w where w + 1 multiplies
  ModelConfig config;
  std::unique_ptr<TensorSource> tensors;
  std::vector<std::filesystem::path> files;  ///< whose bytes identify the model
};

/// Opens, reads the configuration and checks the tensor table against it: every tensor there, of the expected shape,
/// none that the architecture does not know. Throws Input (what is not supported, by field) and Format (damaged,
/// inconsistent).
ModelSource open_model_source(const std::filesystem::path& path);

/// SHA-256 over the file (GGUF) or over config and weight files (folder): Model::sha256().
std::string model_sha256(const ModelSource& source);

/// The configuration as the metadata tells it (tensors not looked at, except rope_freqs.weight).
void read_gguf_config(const GgufFile& file, ModelSource& source);
void read_hf_config(const HfFolder& folder, ModelSource& source);

/// Relations that hold for every architecture: positive sizes, heads that divide, an even head_dim. `field` names as in
/// the file: heads, kv_heads, head_dim.
void check_config(const ModelConfig& config, const std::string& file, const char* heads_field,
                  const char* kv_heads_field, const char* head_dim_field);

/// What the architecture alone says goes into source.config; sizes are there.
void take_features(ModelSource& source);

/// Local layers by layer: all but each nth.
std::vector<std::uint8_t> every_nth_sees_all(int layers, int nth);
/// Without a local layer nothing is set.
void set_local_layers(ModelRope& rope, std::vector<std::uint8_t> is_local, std::int64_t window,
                      const RopeParams& local);

/// Every size of a model stays below this, so that products of three of them fit 64 bits.
inline constexpr std::int64_t kMaxDimension = 1 << 20;

}  // namespace kvq
