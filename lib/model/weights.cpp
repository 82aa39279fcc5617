#include <kvq/model/weights.h>

#include <algorithm>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>

#include <kvq/core/error.h>
#include <kvq/model/block_weights.h>

namespace kvq {

namespace {

/// Elements that are expanded at a time: small enough to stay in a core's cache until they are stored.
constexpr std::int64_t kReadElements = 1 << 16;

/// Copies fp32 rows to where they belong, rounding to bf16 where the mode says so.
void store(LinearMode mode, std::span<const float> values, at::Tensor& matrix, std::int64_t element) {
  if (matrix.scalar_type() == at::kBFloat16) {
    auto* out = matrix.mutable_data_ptr<at::BFloat16>() + element;
    for (std::size_t at = 0; at < values.size(); ++at) out[at] = at::BFloat16(values[at]);
    return;
  }
  float* out = matrix.mutable_data_ptr<float>() + element;
  if (mode == LinearMode::Fp32 || matrix.dim() == 1) {
    std::memcpy(out, values.data(), values.size_bytes());
  } else {
    for (std::size_t at = 0; at < values.size(); ++at) out[at] = at::BFloat16(values[at]);
  }
}

/// Expands a tensor into rows `first_row …` of `matrix`. `permuted_head_dim` > 0: rows 2j and 2j + 1 of a head go to j
/// and j + head_dim / 2.
void expand_rows(const TensorSource& tensors, const std::string& name, LinearMode mode, at::Tensor& matrix,
                 std::int64_t first_row, int permuted_head_dim) {
  const TensorInfo* info = tensors.find(name);
  KVQ_ASSERT(info != nullptr);
  const std::int64_t rows = info->shape[0];
  const std::int64_t width = info->shape.size() == 1 ? 1 : info->shape[1];
  const std::int64_t step =
      permuted_head_dim > 0 ? permuted_head_dim : std::max<std::int64_t>(1, kReadElements / width);
  const std::int64_t steps = (rows + step - 1) / step;
  at::parallel_for(0, steps, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> values(step * width);
    for (std::int64_t part = begin; part < end; ++part) {
      const std::int64_t row = part * step, count = std::min(step, rows - row);
      const std::span<float> read(values.data(), count * width);
      tensors.read_rows(name, row, count, read);
      if (permuted_head_dim == 0) {
        store(mode, read, matrix, (first_row + row) * width);
        continue;
      }
      for (std::int64_t stored = 0; stored < count; ++stored) {
        const std::int64_t channel = stored / 2 + (stored % 2) * (permuted_head_dim / 2);
        store(mode, read.subspan(stored * width, width), matrix, (first_row + row + channel) * width);
      }
    }
  });
  tensors.release(name);
}

const char* part_of(const LayerTensorNames& names, BlockMatrix matrix) {
  switch (matrix) {
    case BlockMatrix::Query:
      return names.q;
    case BlockMatrix::Key:
      return names.k;
    case BlockMatrix::Value:
      return names.v;
    case BlockMatrix::Output:
      return names.o;
    case BlockMatrix::Gate:
      return names.gate;
    case BlockMatrix::Up:
      return names.up;
    case BlockMatrix::Down:
      return names.down;
  }
  KVQ_ASSERT(false);
  return "";
}

/// A matrix of the file into rows `first_row …` of `into`.
void expand_matrix(const ModelSource& source, int layer, BlockMatrix matrix, LinearMode mode, at::Tensor& into,
                   std::int64_t first_row) {
  const bool permuted = source.qk_permuted && (matrix == BlockMatrix::Query || matrix == BlockMatrix::Key);
  expand_rows(*source.tensors, source.names->of(layer, part_of(source.names->layer, matrix)), mode, into, first_row,
              permuted ? source.config.kv.head_dim : 0);
}

}  // namespace

void read_block_matrix(const ModelSource& source, int layer, BlockMatrix matrix, std::span<float> out) {
  const BlockShape shape = source.config.blocks();
  KVQ_ASSERT(static_cast<std::int64_t>(out.size()) == shape.elements(matrix));
  at::Tensor into =
      at::from_blob(out.data(), {shape.rows(matrix), shape.columns(matrix)}, at::TensorOptions().dtype(at::kFloat));
  expand_matrix(source, layer, matrix, LinearMode::Fp32, into, 0);
}

WeightStore::WeightStore(ModelSource source, LinearMode mode, std::int64_t budget_bytes,
                         std::shared_ptr<BlockWeights> replaced, Device device)
    : source_(std::move(source)),
      mode_(mode),
      replaced_(std::move(replaced)),
      device_(device),
      kept_(source_.config.kv.layers) {
  kept_layers_ = static_cast<int>(std::clamp<std::int64_t>(budget_bytes / layer_bytes(), 0, source_.config.kv.layers));
}

std::int64_t WeightStore::layer_bytes() const {
  const ModelConfig& config = source_.config;
  const std::int64_t hidden = config.hidden, query_width = std::int64_t{config.kv.heads} * config.kv.head_dim;
  const std::int64_t matrices =
      hidden * (2 * query_width + 2 * config.kv.width() + 3 * std::int64_t{config.intermediate});
  return matrices * static_cast<std::int64_t>(c10::elementSize(weight_type(mode_))) + 2 * hidden * 4;
}

const LayerWeights& WeightStore::layer(int index) {
  KVQ_ASSERT(index >= 0 && index < source_.config.kv.layers);
  if (index < kept_layers_) {
    if (!kept_[index]) kept_[index] = placed(index);
    return *kept_[index];
  }
  if (passing_index_ != index) {
    passing_ = {};  // its memory is free before the next layer's is needed
    passing_index_ = -1;
    passing_ = placed(index);
    passing_index_ = index;
  }
  return passing_;
}

std::int64_t WeightStore::bytes_to_come() const {
  std::int64_t layers = 0;
  for (int index = 0; index < kept_layers_; ++index) layers += kept_[index] ? 0 : 1;
  if (kept_layers_ < source_.config.kv.layers && passing_index_ < 0) ++layers;
  const std::int64_t output = std::int64_t{source_.config.vocab} * source_.config.hidden *
                              static_cast<std::int64_t>(c10::elementSize(weight_type(mode_)));
  return layers * layer_bytes() + (output_.defined() ? 0 : output);
}

at::Tensor WeightStore::on_device(const at::Tensor& x) const {
  return x.defined() && device_ != Device::Cpu ? x.to(torch_device(device_)) : x;
}

LayerWeights WeightStore::placed(int index) const {
  const c10::InferenceMode ordinary_tensors(false);
  LayerWeights layer = expand(index);
  for (at::Tensor* weight :
       {&layer.attention_norm, &layer.qkv, &layer.qkv_bias, &layer.o, &layer.o_bias, &layer.q_norm, &layer.k_norm,
        &layer.mlp_norm, &layer.gate_up, &layer.down, &layer.post_attention_norm, &layer.post_mlp_norm}) {
    *weight = on_device(*weight);
  }
  return layer;
}

LayerWeights WeightStore::expand(int index) const {
  const c10::InferenceMode ordinary_tensors(false);  // autograd must accept them later, whatever the caller's mode
  const ModelConfig& config = source_.config;
  const TensorNames& names = *source_.names;
  const TensorSource& tensors = *source_.tensors;
  const std::int64_t query_width = std::int64_t{config.kv.heads} * config.kv.head_dim, width = config.kv.width();
  const int permuted = source_.qk_permuted ? config.kv.head_dim : 0;
  const auto matrix = [&](std::int64_t out, std::int64_t in) {
    return at::empty({out, in}, at::TensorOptions().dtype(weight_type(mode_)));
  };
  const auto vector = [&](std::int64_t size) { return at::empty({size}, at::TensorOptions().dtype(at::kFloat)); };
  const auto read = [&](const char* part, const char* kind, at::Tensor& into, std::int64_t first_row,
                        int head_dim = 0) {
    expand_rows(tensors, names.of(index, part, kind), mode_, into, first_row, head_dim);
  };

  std::vector<float> values;
  const auto read_matrix = [&](BlockMatrix which, at::Tensor& into, std::int64_t first_row) {
    if (!replaced_) return expand_matrix(source_, index, which, mode_, into, first_row);
    values.resize(static_cast<std::size_t>(config.blocks().elements(which)));
    replaced_->read(index, which, values);
    store(mode_, values, into, first_row * into.size(1));
  };

  LayerWeights layer;
  layer.attention_norm = norm(names.of(index, names.layer.attention_norm), config.hidden);
  layer.qkv = matrix(query_width + 2 * width, config.hidden);
  read_matrix(BlockMatrix::Query, layer.qkv, 0);
  read_matrix(BlockMatrix::Key, layer.qkv, query_width);
  read_matrix(BlockMatrix::Value, layer.qkv, query_width + width);
  if (config.attention_bias) {
    layer.qkv_bias = vector(query_width + 2 * width);
    read(names.layer.q, ".bias", layer.qkv_bias, 0, permuted);
    read(names.layer.k, ".bias", layer.qkv_bias, query_width, permuted);
    read(names.layer.v, ".bias", layer.qkv_bias, query_width + width);
  }
  layer.o = matrix(config.hidden, query_width);
  read_matrix(BlockMatrix::Output, layer.o, 0);
  if (config.output_bias) {
    layer.o_bias = vector(config.hidden);
    read(names.layer.o, ".bias", layer.o_bias, 0);
  }
  if (config.qk_norm) {
    layer.q_norm = norm(names.of(index, names.layer.q_norm), config.kv.head_dim);
    if (config.query_scale != 1.0) layer.q_norm.mul_(config.query_scale);
    layer.k_norm = norm(names.of(index, names.layer.k_norm), config.kv.head_dim);
  }
  if (config.post_norms) {
    layer.post_attention_norm = norm(names.of(index, names.layer.post_attention_norm), config.hidden);
    layer.post_mlp_norm = norm(names.of(index, names.layer.post_mlp_norm), config.hidden);
  }
  layer.mlp_norm = norm(names.of(index, names.layer.mlp_norm), config.hidden);
  layer.gate_up = matrix(2 * std::int64_t{config.intermediate}, config.hidden);
  read_matrix(BlockMatrix::Gate, layer.gate_up, 0);
  read_matrix(BlockMatrix::Up, layer.gate_up, config.intermediate);
  layer.down = matrix(config.hidden, config.intermediate);
  read_matrix(BlockMatrix::Down, layer.down, 0);
  return layer;
}

at::Tensor WeightStore::norm(const std::string& name, std::int64_t width) const {
  at::Tensor weight = at::empty({width}, at::TensorOptions().dtype(at::kFloat));
  expand_rows(*source_.tensors, name, mode_, weight, 0, 0);
  if (source_.norm_offset != 0) weight.add_(source_.norm_offset);
  return weight;
}

const at::Tensor& WeightStore::output_norm() {
  if (!output_norm_.defined()) {
    const c10::InferenceMode ordinary_tensors(false);
    output_norm_ = on_device(norm(source_.names->output_norm, source_.config.hidden));
  }
  return output_norm_;
}

const at::Tensor& WeightStore::output() {
  if (!output_.defined()) {
    const c10::InferenceMode ordinary_tensors(false);
    at::Tensor matrix =
        at::empty({source_.config.vocab, source_.config.hidden}, at::TensorOptions().dtype(weight_type(mode_)));
    expand_rows(*source_.tensors, source_.config.tied_embeddings ? source_.names->embedding : source_.names->output,
                mode_, matrix, 0, 0);
    output_ = on_device(matrix);
  }
  return output_;
}

at::Tensor WeightStore::embed(std::span<const std::int32_t> ids) const {
  const std::int64_t hidden = source_.config.hidden;
  at::Tensor result = at::empty({static_cast<std::int64_t>(ids.size()), hidden}, at::TensorOptions().dtype(at::kFloat));
  float* out = result.mutable_data_ptr<float>();
  const std::string name = source_.names->embedding;
  for (std::size_t token = 0; token < ids.size(); ++token) {
    source_.tensors->read_rows(name, ids[token], 1, {out + token * hidden, static_cast<std::size_t>(hidden)});
  }
  source_.tensors->release(name);
  if (source_.config.embedding_scale != 1.0) result.mul_(source_.config.embedding_scale);
  return result;
}

}  // namespace kvq
