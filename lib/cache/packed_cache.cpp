#include <kvq/cache/packed_cache.h>

#include <span>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <kvq/cache/cache_checks.h>
#include <kvq/core/error.h>
#include <kvq/model/device.h>

namespace kvq {

namespace {

std::span<const float> numbers(const at::Tensor& x) {
  return {x.const_data_ptr<float>(), static_cast<std::size_t>(x.numel())};
}

}  // namespace

PackedCache::PackedCache(std::shared_ptr<PackedPool> pool, int threads)
    : sequence_(std::move(pool)), threads_(threads), tables_(sequence_.pool().quantizer().rope), attention_(threads) {}

PackedCache::PackedCache(std::shared_ptr<const Quantizer> quantizer, int threads)
    : PackedCache(std::make_shared<PackedPool>(std::move(quantizer)), threads) {}

at::Tensor PackedCache::attend(const AttentionInput& input) {
  const c10::AutoGradMode no_graph(false);
  const Quantizer& quantizer = sequence_.pool().quantizer();
  check_input(input, quantizer.shape);
  KVQ_ASSERT(sequence_.length(input.layer) == input.first_position);
  at::Tensor key = host_floats(input.key);
  if (quantizer.recipe.key.post_rope) key = tables_.of(input.layer).apply(key, input.first_position).contiguous();
  const at::Tensor value = host_floats(input.value), query = host_floats(input.query);
  sequence_.append(input.layer, numbers(key), numbers(value), threads_);
  const at::Tensor result = at::empty(query.sizes(), query.options());
  attention_.attend(sequence_, input.layer, numbers(query),
                    {result.mutable_data_ptr<float>(), static_cast<std::size_t>(result.numel())});
  sequence_.release(input.layer);
  return result.to(input.query.device(), input.query.scalar_type());
}

}  // namespace kvq
