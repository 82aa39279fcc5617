// Caches of a model that is computed on a GPU: keys, values and queries come from there, answers go back there.
#include "cache/packed_support.h"
#include "support/catch.h"
#include "support/gpu.h"

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/packed_cache.h>
#include <kvq/cache/simulated_cache.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr KvShape kShape = {1, 4, 2, 32};
constexpr std::int64_t kTokens = 300;

at::Tensor answers(KvCache& cache, const AttentionInput& window, c10::Device device, bool bf16,
                   const std::vector<std::int64_t>& parts) {
  std::vector<at::Tensor> results;
  std::int64_t first = 0;
  for (const std::int64_t count : parts) {
    AttentionInput input = part_of(window, first, count);
    input.query = input.query.to(device), input.key = input.key.to(device), input.value = input.value.to(device);
    input.bf16 = bf16;
    results.push_back(cache.attend(input));
    CHECK(results.back().device() == device);
    first += count;
  }
  return host_floats(at::cat(results, 0));
}

double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  return found.sub(expected).norm().item<double>() / expected.norm().item<double>();
}

void check_answers(Device where) {
  const c10::Device other = torch_device(where), cpu = torch_device(Device::Cpu);
  std::uint64_t seed = 1;
  for (const std::string recipe : {"nuq3-1%", "nuq4-1%:rope=post", "int4:key=token", "nuq2-5%:share=head,sink=4",
                                   "kivi2:group=32,recent=64", "nuq4-1%:recent=32", "none:evict=h2o,budget=25%",
                                   "none:evict=first-recent,budget=50%", "nuq4-1%:evict=snapkv,budget=60%"}) {
    const auto quantizer = random_quantizer(recipe, kShape, ++seed);
    Rng rng(seed);
    const AttentionInput window = random_input(kShape, 0, kTokens, rng);
    for (const bool bf16 : {false, true}) {
      for (const std::vector<std::int64_t>& parts :
           {std::vector<std::int64_t>{kTokens}, std::vector<std::int64_t>{100, 1, 1, 63, 135}}) {
        INFO(recipe << (bf16 ? ", bf16" : "") << ", " << parts.size() << " calls");
        SimulatedCache host(quantizer, 2), device(quantizer, 2);
        host.set_prompt(200), device.set_prompt(200);
        const at::Tensor expected = answers(host, window, cpu, bf16, parts);
        const at::Tensor found = by_operations(where, [&] { return answers(device, window, other, bf16, parts); });
        CHECK(relative_error(found, expected) <= (bf16 ? 2e-2 : 1e-5));
        CHECK(device.bytes() == host.bytes());
      }
    }
  }
  const auto quantizer = random_quantizer("nuq3-1%", kShape, 1);
  Rng rng(9);
  const AttentionInput window = random_input(kShape, 0, kTokens, rng);
  PackedCache host(quantizer, 2), device(quantizer, 2);
  const at::Tensor expected = answers(host, window, cpu, false, {200, 100});
  CHECK(answers(device, window, other, false, {200, 100}).equal(expected));
}

void check_bad_value(Device where) {
  const auto quantizer = random_quantizer("nuq3-1%", kShape, 1);
  Rng rng(9);
  AttentionInput window = random_input(kShape, 0, 20, rng);
  window.value[7][1][3] = std::numeric_limits<float>::quiet_NaN();
  SimulatedCache cache(quantizer, 2);
  by_operations(where, [&] {
    CHECK_THROWS_WITH(answers(cache, window, torch_device(where), false, {20}),
                      ContainsSubstring("layer 0: value of token 7, head 1, channel 3 is nan"));
  });
}

}  // namespace

KVQ_TEST_OF_OPERATIONS("Simulated and packed caches answer another device as they answer the CPU", check_answers)
KVQ_TEST_OF_OPERATIONS("A value that is no number is named wherever it comes from", check_bad_value)
