#include <kvq/cache/packed_pool.h>

#include <string>

#include <fmt/format.h>

#include <kvq/cache/page_writer.h>
#include <kvq/core/error.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/side_shape.h>

namespace kvq {

namespace {

constexpr std::int64_t kPagesPerChunk = 8, kOverflowBlocksPerChunk = 256;

}  // namespace

const Quantizer& check_packable(const Quantizer& quantizer) {
  if (const std::string refusal = packed_refusal(quantizer.recipe); !refusal.empty()) fail(ErrorKind::Usage, refusal);
  if (static_cast<int>(quantizer.layers.size()) != quantizer.shape.layers) {
    fail(ErrorKind::Mismatch, fmt::format("quantizer has {} layers, but its shape says {}", quantizer.layers.size(),
                                          quantizer.shape.layers));
  }
  for (std::size_t layer = 0; layer < quantizer.layers.size(); ++layer) {
    for (const Side side : kSides) {
      const SideQuantizer& part = quantizer.layers[layer].side(side);
      if (part.kv_heads != quantizer.shape.kv_heads || part.head_dim != quantizer.shape.head_dim) {
        fail(ErrorKind::Mismatch, fmt::format("quantizer, layer {}, {}: {} kv heads of {}, but its shape says {} of {}",
                                              layer, side_name(side), part.kv_heads, part.head_dim,
                                              quantizer.shape.kv_heads, quantizer.shape.head_dim));
      }
    }
  }
  return quantizer;
}

std::int64_t overflow_block_bytes(const KvShape& shape) {
  layout::SideShape side;
  side.kv_heads = shape.kv_heads, side.head_dim = shape.head_dim;
  side.varying_outliers = true;
  return layout::overflow_block(side).bytes;
}

PackedPool::PackedPool(std::shared_ptr<const Quantizer> quantizer, SimdLevel level)
    : quantizer_(std::move(quantizer)),
      windows_{exact_window(quantizer_->recipe, Side::Key), exact_window(quantizer_->recipe, Side::Value)},
      loops_(page_loops(level)),
      overflow_(overflow_block_bytes(check_packable(*quantizer_).shape), kOverflowBlocksPerChunk),
      angles_(static_cast<const RopeParams&>(quantizer_->rope)),
      local_angles_(quantizer_->rope.local) {
  layers_.reserve(quantizer_->layers.size());
  for (const LayerQuantizer& layer : quantizer_->layers) {
    const layout::PageLayout page = page_layout(layer);
    const CodeRows key_rows(layer.key, page.key), value_rows(layer.value, page.value);
    const auto key_rotation = SideRotation::of(layer.key, Side::Key, quantizer_->shape.heads);
    const auto value_rotation = SideRotation::of(layer.value, Side::Value, quantizer_->shape.heads);
    layers_.push_back({page,
                       {key_rows, value_rows},
                       {SideCoder(layer.key), SideCoder(layer.value)},
                       {SideDecoder(layer.key, page.key, page.key_parts, key_rows, loops_, key_rotation),
                        SideDecoder(layer.value, page.value, page.value_parts, value_rows, loops_, value_rotation)},
                       {key_rotation, value_rotation},
                       BlockPool(page.bytes, kPagesPerChunk),
                       {}});
    Layer& made = layers_.back();
    made.blank.resize(static_cast<std::size_t>(page.bytes + BlockPool::kReadable));
    for (const Side side : kSides)
      PageWriter(made.shape(side), made.parts(side), made.code_rows(side), made.blank.data()).begin();
  }
}

std::int64_t PackedPool::taken_bytes() const {
  std::int64_t bytes = overflow_.taken() * overflow_.block_bytes();
  for (const Layer& layer : layers_) bytes += layer.pages.taken() * layer.pages.block_bytes();
  return bytes;
}

std::int64_t PackedPool::reserved_bytes() const {
  std::int64_t bytes = overflow_.reserved_bytes();
  for (const Layer& layer : layers_) bytes += layer.pages.reserved_bytes();
  return bytes;
}

}  // namespace kvq
