#include <memory>
#include <string>
#include <vector>

#include "cache/packed_support.h"
#include "kernels/cuda_cache.h"
#include "support/catch.h"
#include "support/gpu.h"
#include "support/skip.h"

#include <kvq/cache/packed_cache.h>
#include <kvq/core/error.h>
#include <kvq/cuda/cuda_cache.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr KvShape kShape = {2, 8, 2, 64};

/// Bytes of pages that differ, the numbers of overflow blocks aside: which one is taken first may differ.
/// `page_of(number)`: what is expected.
template <typename PageOf>
std::int64_t different_bytes(const CudaCache& cuda, int layer, const PageOf& page_of) {
  const layout::PageLayout& page = cuda.layer(layer).page();
  const std::vector<std::uint8_t> found = cuda.layer(layer).download_pages();
  std::int64_t different = 0;
  for (std::size_t at = 0; at < found.size(); ++at) {
    const auto inside = static_cast<std::int64_t>(at) % page.bytes;
    if (page.key.varying_outliers && inside / 4 == page.key_parts.overflow_link / 4) continue;
    different += page_of(static_cast<std::int64_t>(at) / page.bytes)[inside] != found[at];
  }
  return different;
}
std::int64_t different_bytes(const PackedCache& packed, const CudaCache& cuda, int layer) {
  return different_bytes(cuda, layer, [&](std::int64_t page) { return packed.sequence().page(layer, page); });
}
std::int64_t different_bytes(const CudaCache& one, const CudaCache& other, int layer) {
  const std::vector<std::uint8_t> pages = one.layer(layer).download_pages();
  REQUIRE(pages.size() == other.layer(layer).download_pages().size());
  return different_bytes(other, layer,
                         [&](std::int64_t page) { return pages.data() + page * one.layer(layer).page().bytes; });
}

}  // namespace

TEST_CASE("CUDA cache: the bytes of the packed cache and its answers, however the tokens come", "[gpu]") {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) KVQ_SKIP(reason);
  std::uint64_t seed = 1;
  for (const std::string recipe : {"nuq4-1%",
                                   "nuq3-1%:sink=4",
                                   "nuq2-5%:share=head",
                                   "int4",
                                   "nf4-2%:sink=0",
                                   "nuq3-1%:rope=post",
                                   "K=nuq5-1%/V=int3",
                                   "nuq4-10%:cap=2%",
                                   "nuq2-1%:qnorm",
                                   "nuq8-1%",
                                   "kvq2",
                                   "kvq1.5:sink=2",
                                   "kvq3:icm=1",
                                   "kvq4",
                                   "K=nuq3-2%:widths=pair/V=nuq2-2%",
                                   "K=nuq2:widths=pair,sink=5/V=nuq1:levels=3",
                                   "nuq2:levels=5,share=head",
                                   "K=nuq3-2%/V=nuq3:levels=10,qnorm,sink=0",
                                   "K=nuq3-2%/V=nuq3:rotate=hadamard,sink=3",
                                   "nuq2:feedback,icm=2"}) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, kShape, ++seed);
    const std::vector<AttentionInput> window = random_window(kShape, 300, 100 + seed);
    PackedCache packed(quantizer, 2);
    CudaCache cuda(quantizer);
    const std::vector<double> expected = doubles(run(packed, window, {300}));
    const auto compare = [&](const std::vector<std::int64_t>& parts) {
      const at::Tensor result = run(cuda, window, parts);
      const std::vector<float> found(result.const_data_ptr<float>(), result.const_data_ptr<float>() + result.numel());
      CHECK(relative_error(found, expected) < 2e-3);
      CHECK(cuda.tokens() == 300);
      CHECK(cuda.bytes() == packed.bytes());
      for (int layer = 0; layer < kShape.layers; ++layer) CHECK(different_bytes(packed, cuda, layer) == 0);
    };
    compare({300});
    cuda.reset();
    CHECK(cuda.tokens() == 0);
    CHECK(cuda.bytes() == 0);
    compare({1, 62, 1, 1, 100, 1, 134});
  }
}

TEST_CASE("CUDA cache: recipes that round head vectors, every head_dim and number of heads", "[gpu]") {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) KVQ_SKIP(reason);
  std::uint64_t seed = 40;
  for (const KvShape& shape : {KvShape{1, 3, 3, 64}, KvShape{1, 5, 5, 80}, KvShape{1, 6, 3, 96}, KvShape{1, 16, 4, 128},
                               KvShape{1, 2, 1, 256}}) {
    for (const std::string recipe : {"kvq2", "kvq1.5", "kvq3:icm=0", "kvq4"}) {
      INFO(recipe << ", " << shape.kv_heads << " kv heads of " << shape.head_dim);
      const auto quantizer = random_quantizer(recipe, shape, ++seed);
      const std::vector<AttentionInput> window = random_window(shape, 200, 100 + seed);
      PackedCache packed(quantizer, 2);
      CudaCache cuda(quantizer);
      const std::vector<double> expected = doubles(run(packed, window, {200}));
      const at::Tensor result = run(cuda, window, {130, 1, 1, 1, 67});
      const std::vector<float> found(result.const_data_ptr<float>(), result.const_data_ptr<float>() + result.numel());
      CHECK(relative_error(found, expected) < 3e-3);
      CHECK(cuda.bytes() == packed.bytes());
      CHECK(different_bytes(packed, cuda, 0) == 0);
    }
  }
}

TEST_CASE("CUDA cache: keys, values and queries are taken where they are, on the GPU too", "[gpu]") {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) KVQ_SKIP(reason);
  if (const std::string reason = no_cuda_reason(); !reason.empty()) KVQ_SKIP(reason);
  const c10::Device gpu = torch_device(Device::Cuda);
  for (const std::string recipe : {"nuq4-1%", "nuq3-1%:rope=post", "nuq4-10%:cap=2%", "kvq2"}) {
    INFO(recipe);
    const auto quantizer = random_quantizer(recipe, kShape, 5);
    Rng rng(6);
    CudaCache from_host(quantizer), from_gpu(quantizer);
    for (const std::int64_t tokens : {200, 1, 1, 98}) {
      for (int layer = 0; layer < kShape.layers; ++layer) {
        AttentionInput input = random_input(kShape, layer, tokens, rng);
        input.first_position = from_gpu.layer(layer).length();
        const at::Tensor expected = from_host.attend(input);
        input.query = input.query.to(gpu), input.key = input.key.to(gpu), input.value = input.value.to(gpu);
        const at::Tensor found = from_gpu.attend(input);
        CHECK(found.is_cuda());
        const bool rotated = recipe.ends_with("post");  // by the GPU's arithmetic, which may round to another code
        CHECK(host_floats(found).sub(expected).norm().item<double>() <=
              (rotated ? 0.02 : 2e-3) * expected.norm().item<double>());
        if (!rotated) CHECK(different_bytes(from_host, from_gpu, layer) == 0);
      }
    }
  }
  AttentionInput input = random_input(kShape, 0, 3, *std::make_unique<Rng>(1));
  input.value[1][1][7] = 1e30f;
  for (at::Tensor* x : {&input.query, &input.key, &input.value}) *x = x->to(gpu);
  CudaCache cache(random_quantizer("nuq4-1%", kShape, 5));
  CHECK_THROWS_WITH(cache.attend(input), ContainsSubstring("value of token 1, head 1, channel 7"));
}

TEST_CASE("CUDA cache: what the kernels do not know is refused by name", "[gpu]") {
  if (const std::string reason = no_gpu_reason(); !reason.empty()) KVQ_SKIP(reason);
  CHECK_THROWS_WITH(CudaCache(random_quantizer("int4:key=token", kShape, 1)), ContainsSubstring("key=token"));
  CHECK_THROWS_AS(CudaCache(random_quantizer("int4:range=window", kShape, 1)), Error);
  CudaCache odd(random_quantizer("nuq4-1%", {1, 4, 2, 48}, 1));
  Rng rng(3);
  CHECK_THROWS_WITH(odd.attend(random_input({1, 4, 2, 48}, 0, 5, rng)), ContainsSubstring("head_dim is 48"));
}
