#include <kvq/cuda/cuda_cache.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <kvq/cache/cache_checks.h>
#include <kvq/cache/cuda_plugin.h>
#include <kvq/cache/packed_pool.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/model/device.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

/// Queries of one launch: bounds the memory for partial results.
constexpr std::int64_t kMostRows = 1024;

at::Tensor contiguous_fp32(const at::Tensor& x) { return x.detach().to(at::kFloat).contiguous(); }
std::span<const float> numbers(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), static_cast<std::size_t>(x.numel())};
}
/// Where the numbers are on the GPU: where they were, or in `room`. libtorch's operations and the kernels here use the
/// same stream, so nothing has to be waited for.
const float* on_gpu(const at::Tensor& x, DeviceArray<float>& room) {
  if (x.is_cuda()) return x.const_data_ptr<float>();
  room.upload(numbers(x));
  return room.data();
}

void check_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    fail(ErrorKind::Device,
         fmt::format("--cache cuda: there is no usable GPU here ({}); --cache packed runs on the CPU",
                     status == cudaSuccess ? "no device" : cudaGetErrorString(status)));
  }
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device), "asking for the device");
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking what the GPU can do");
  if (major < 8) {
    fail(ErrorKind::Device,
         fmt::format("--cache cuda: the GPU has compute capability {}.x; 8.0 or later is needed", major));
  }
}

const Quantizer& checked(const std::shared_ptr<const Quantizer>& quantizer) {
  check_packable(*quantizer);
  const Recipe& recipe = quantizer->recipe;
  if (const std::string refusal = cuda_refusal(recipe); !refusal.empty()) fail(ErrorKind::Usage, refusal);
  const ModelRope& rope = quantizer->rope;
  if (rope.has_local_layers()) {
    fail(
        ErrorKind::Mismatch,
        fmt::format("--cache cuda: the model has layers whose queries see {} tokens only and rotate by angles of their "
                    "own, which the kernels do not know; --cache packed and --cache simulated do",
                    rope.window));
  }
  if (!recipe.key.post_rope && rope.rotary_dim != quantizer->shape.head_dim) {
    fail(ErrorKind::Mismatch, fmt::format("--cache cuda: {} of {} channels of a head rotate; the kernels rotate all of "
                                          "them; --cache packed does not mind",
                                          rope.rotary_dim, quantizer->shape.head_dim));
  }
  check_device();
  return *quantizer;
}

void check(cuda::Status status, const KvShape& shape, const char* what) {
  switch (status) {
    case cuda::Status::Ok:
      return;
    case cuda::Status::UnsupportedHeadDim:
      fail(ErrorKind::Mismatch,
           fmt::format("--cache cuda: head_dim is {}; the kernels know 64, 80, 96, 128 and 256", shape.head_dim));
    case cuda::Status::UnsupportedHeads:
      fail(ErrorKind::Mismatch,
           fmt::format("--cache cuda: {} query heads for {} kv heads; the kernels take up to 8 for one", shape.heads,
                       shape.kv_heads));
    case cuda::Status::TooMuchSharedMemory:
      fail(ErrorKind::Device, fmt::format("--cache cuda: this GPU has too little shared memory for {} kv heads of {}",
                                          shape.kv_heads, shape.head_dim));
    case cuda::Status::LaunchFailed:
      check_cuda(cudaGetLastError(), what);
      fail(ErrorKind::Device, fmt::format("CUDA, {}: the launch failed", what));
    default:
      fail(ErrorKind::Device, fmt::format("CUDA, {}: refused with status {}", what, static_cast<int>(status)));
  }
}

}  // namespace

CudaCache::CudaCache(std::shared_ptr<const Quantizer> quantizer)
    : quantizer_(std::move(quantizer)),
      overflow_(overflow_block_bytes(checked(quantizer_).shape)),
      rope_(static_cast<const RopeParams&>(quantizer_->rope)) {  // checked(): the same in all layers
  layers_.reserve(quantizer_->layers.size());
  for (const LayerQuantizer& layer : quantizer_->layers)
    layers_.emplace_back(layer, quantizer_->recipe.sinks, quantizer_->shape.heads);
  report_.reserve(1);
}

at::Tensor CudaCache::attend(const AttentionInput& input) {
  const c10::AutoGradMode no_graph(false);
  check_input(input, quantizer_->shape);
  KVQ_ASSERT(layer(input.layer).length() == input.first_position);
  at::Tensor key = contiguous_fp32(input.key);
  if (quantizer_->recipe.key.post_rope) key = rope_.apply(key, input.first_position).contiguous();
  append(input.layer, key, contiguous_fp32(input.value));
  const at::Tensor query = rope_.apply(contiguous_fp32(input.query), input.first_position).contiguous();
  const at::Tensor result = at::empty(query.sizes(), query.options());
  answer(input.layer, input.first_position, query, result);
  return result.to(input.query.scalar_type());
}

void CudaCache::append(int index, const at::Tensor& key, const at::Tensor& value) {
  CudaLayer& layer = layers_[static_cast<std::size_t>(index)];
  const auto tokens = static_cast<std::int32_t>(key.size(0));
  layer.reserve(tokens);
  if (layer.page().key.varying_outliers) {
    overflow_.reserve(cuda::append_overflow_blocks(layer.page().key, tokens));
  }
  lengths_.upload(std::array{static_cast<std::int32_t>(layer.length())});
  rows_.upload(std::array<std::int32_t, 2>{0, tokens});
  report_.fill_bytes(0xff);

  cuda::QuantizeAppend arguments;
  layer.describe(arguments);
  arguments.lengths = lengths_.data(), arguments.first = rows_.data();
  arguments.batch = 1, arguments.most_tokens = tokens;
  arguments.key = on_gpu(key, key_), arguments.value = on_gpu(value, value_), arguments.type = cuda::Number::Float;
  arguments.key_overflow = overflow_.data();
  arguments.free_blocks = overflow_.free_list(), arguments.free_count = overflow_.free_count();
  arguments.report = report_.data();
  if (layer.rounds()) round(layer, arguments);
  check(cuda::quantize_append(arguments, nullptr), quantizer_->shape, "encoding");
  check_cuda(cudaDeviceSynchronize(), "encoding");
  refuse_what_did_not_fit(index, layer.length(), key, value);
  overflow_.refresh();
  layer.appended(tokens);
}

void CudaCache::round(const CudaLayer& layer, cuda::QuantizeAppend& append) {
  cuda::RoundBlocks arguments;
  layer.describe(arguments);
  arguments.tokens = append.most_tokens;
  arguments.key = append.key, arguments.value = append.value, arguments.type = append.type;
  const std::int64_t numbers = arguments.tokens * layer.page().key.width();
  if (arguments.key_tables.rounds) {
    key_codes_.reserve(numbers), key_exact_.reserve(numbers);
    arguments.rounded_key = {key_codes_.data(), key_exact_.data(), nullptr};
  }
  if (arguments.value_tables.rounds) {
    value_codes_.reserve(numbers), ranges_.reserve(2 * arguments.tokens);
    if (layer.rotates_values()) rotated_.reserve(numbers);
    arguments.rounded_value = {value_codes_.data(), nullptr, layer.rotates_values() ? rotated_.data() : nullptr};
    arguments.value_ranges = ranges_.data();
  }
  check(cuda::round_blocks(arguments, nullptr), quantizer_->shape, "rounding");
  append.rounded_key = arguments.rounded_key, append.rounded_value = arguments.rounded_value;
}

void CudaCache::refuse_what_did_not_fit(int index, std::int64_t first_token, const at::Tensor& key,
                                        const at::Tensor& value) {
  std::array<cuda::AppendReport, 1> report{};
  report_.download(report);
  KVQ_ASSERT(report[0].blocks_missing == ~0ull);  // reserved for the worst case
  if (report[0].overflow == ~0ull) return;
  const auto token = static_cast<std::int64_t>(report[0].overflow >> 17);
  const Side side = report[0].overflow >> 16 & 1 ? Side::Value : Side::Key;
  auto channel = static_cast<int>(report[0].overflow & 0xffff);
  const SideQuantizer& quantizer = quantizer_->layers[static_cast<std::size_t>(index)].side(side);
  const at::Tensor host = host_floats(side == Side::Key ? key : value);
  const auto row = numbers(host).subspan(static_cast<std::size_t>(token * quantizer.width()),
                                         static_cast<std::size_t>(quantizer.width()));
  if (channel == 0xffff) {  // the range: its largest value is named
    const auto larger = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
    channel = static_cast<int>(std::max_element(row.begin(), row.end(), larger) - row.begin());
  }
  fail_overflow(index, side, first_token, quantizer.head_dim,
                ExactOverflow(token, channel, row[static_cast<std::size_t>(channel)],
                              kHalfMax * power_of_two(quantizer.exponent)));
}

void CudaCache::answer(int index, std::int64_t first_position, const at::Tensor& query, const at::Tensor& result) {
  const KvShape& shape = quantizer_->shape;
  const std::int64_t tokens = query.size(0), row = std::int64_t{shape.heads} * shape.head_dim;
  reserve_rope(first_position + tokens);
  const float* queries = on_gpu(query, query_);
  float* answers = result.is_cuda() ? result.mutable_data_ptr<float>() : nullptr;
  if (answers == nullptr) result_.reserve(tokens * row), answers = result_.data();
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(tokens));
  std::iota(lengths.begin(), lengths.end(), static_cast<std::int32_t>(first_position + 1));
  lengths_.upload(lengths);

  cuda::DecodeAttention arguments;
  layer(index).describe(arguments.cache);
  arguments.cache.block_table_stride = 0, arguments.cache.sink_stride = 0;
  arguments.cache.key_overflow = overflow_.data();
  arguments.heads = shape.heads;
  arguments.query_type = arguments.output_type = cuda::Number::Float;
  arguments.rope = angles_;
  arguments.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  for (std::int64_t begin = 0; begin < tokens; begin += kMostRows) {
    const std::int64_t rows = std::min(kMostRows, tokens - begin);
    arguments.batch = static_cast<std::int32_t>(rows);
    arguments.max_length = first_position + begin + rows;
    arguments.cache.lengths = lengths_.data() + begin;
    arguments.query = queries + begin * row, arguments.output = answers + begin * row;
    if (const std::int64_t blocks = rows * shape.heads; blocks > arrivals_.room()) {
      arrivals_.reserve(blocks);
      arrivals_.fill_bytes(0);
    }
    arguments.arrivals = arrivals_.data();
    const std::size_t needed = cuda::decode_workspace_bytes(arguments);
    workspace_.reserve(static_cast<std::int64_t>(needed));
    arguments.workspace = workspace_.data(), arguments.workspace_bytes = needed;
    check(cuda::decode_attention(arguments, nullptr), shape, "attention");
    if (layer(index).rotates_values())
      check(layer(index).rotate_back(answers + begin * row, rows), shape, "rotating back");
  }
  check_cuda(cudaDeviceSynchronize(), "attention");
  if (!result.is_cuda()) result_.download({result.mutable_data_ptr<float>(), static_cast<std::size_t>(result.numel())});
}

void CudaCache::reserve_rope(std::int64_t tokens) {
  if (tokens <= angles_.tokens) return;
  const int head_dim = quantizer_->shape.head_dim;
  const std::int64_t room = std::max(tokens, 2 * angles_.tokens);
  std::vector<double> frequencies(static_cast<std::size_t>(head_dim / 2), 0.0);
  if (!quantizer_->recipe.key.post_rope) frequencies = quantizer_->rope.inverse_frequencies();
  angle_memory_.reserve(static_cast<std::int64_t>(cuda::rope_table_bytes(head_dim, room)));
  check(cuda::build_rope_tables(frequencies.data(), head_dim, room, angle_memory_.data(), angles_, nullptr),
        quantizer_->shape, "rotary tables");
}

void CudaCache::reset() {
  for (CudaLayer& layer : layers_) layer.reset();
  overflow_.give_all_back();
}

std::int64_t CudaCache::bytes() const {
  std::int64_t bytes = overflow_.taken() * overflow_.block_bytes();
  for (const CudaLayer& layer : layers_) bytes += layer.bytes();
  return bytes;
}

}  // namespace kvq

extern "C" kvq::KvCache* kvq_make_cuda_cache(const std::shared_ptr<const kvq::Quantizer>& quantizer) {
  kvq::check_device();
  return quantizer ? new kvq::CudaCache(quantizer) : nullptr;
}
