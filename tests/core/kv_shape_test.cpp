#include "support/catch.h"

#include <vector>

#include <kvq/core/error.h>
#include <kvq/core/kv_shape.h>

using namespace kvq;

namespace {

// transformers 5.24.0, ROPE_INIT_FUNCTIONS, fp32 printed with 8 digits:
//   LlamaConfig(hidden_size=2048, num_attention_heads=32, head_dim=64, rope_theta=500000.0,
//   max_position_embeddings=131072,
//     rope_scaling=dict(rope_type="llama3", factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0,
//                       original_max_position_embeddings=8192))                       (Llama-3.2-1B)
const std::vector<double> kLlama3 = {
    1.0,           0.66360128,    0.44036663,    0.29222783,    0.19392276,    0.12868738,    0.085397102,
    0.056669619,   0.037606031,   0.024955409,   0.016560441,   0.010989529,   0.0072926651,  0.0048394212,
    0.0032114461,  0.001290548,   0.00042955671, 9.7082862e-05, 1.9461639e-05, 1.2914767e-05, 8.5702559e-06,
    5.6872323e-06, 3.7740544e-06, 2.5044671e-06, 1.6619674e-06, 1.1028836e-06, 7.3187493e-07, 4.8567313e-07,
    3.2229329e-07, 2.1387423e-07, 1.419272e-07,  9.4183065e-08};
// The same with rope_type="linear", factor=4.0, rope_theta=10000.0: the first six and the last.
const std::vector<double> kLinear = {0.25, 0.18747355, 0.14058533, 0.10542413, 0.079056941, 0.059284341};
constexpr double kLinearLast = 3.333803761051968e-05;
constexpr double kFp32 = 3e-7;  // the references are fp32; angles grow with the position, so nothing larger will do

}  // namespace

TEST_CASE("Frequencies of the default rotary embedding are theta to the power of -2j/d") {
  RopeParams rope;
  rope.rotary_dim = 8;
  const std::vector<double> frequencies = rope.inverse_frequencies();
  REQUIRE(frequencies.size() == 4);
  CHECK(frequencies[0] == 1.0);
  CHECK(frequencies[1] == Approx(0.1).epsilon(1e-15));
  CHECK(frequencies[2] == Approx(0.01).epsilon(1e-15));
  CHECK(frequencies[3] == Approx(0.001).epsilon(1e-15));
}

TEST_CASE("Linear scaling divides every frequency, as transformers does") {
  RopeParams rope{.kind = "linear", .theta = 10000.0, .rotary_dim = 64, .factor = 4.0};
  const std::vector<double> frequencies = rope.inverse_frequencies();
  for (std::size_t pair = 0; pair < kLinear.size(); ++pair)
    CHECK(frequencies[pair] == Approx(kLinear[pair]).epsilon(kFp32));
  CHECK(frequencies.back() == Approx(kLinearLast).epsilon(kFp32));
}

TEST_CASE("Llama 3 scaling keeps fast pairs, stretches slow ones and blends between, as transformers does") {
  RopeParams rope{.kind = "llama3",
                  .theta = 500000.0,
                  .rotary_dim = 64,
                  .factor = 32.0,
                  .low_freq_factor = 1.0,
                  .high_freq_factor = 4.0,
                  .original_context = 8192};
  const std::vector<double> frequencies = rope.inverse_frequencies();
  REQUIRE(frequencies.size() == kLlama3.size());
  for (std::size_t pair = 0; pair < kLlama3.size(); ++pair) {
    INFO("pair " << pair);
    CHECK(frequencies[pair] == Approx(kLlama3[pair]).epsilon(kFp32));
  }
}

TEST_CASE("An unknown rotary embedding is refused by name with the known ones") {
  RopeParams rope{.kind = "yarn", .rotary_dim = 8};
  CHECK_THROWS_WITH(rope.inverse_frequencies(), ContainsSubstring("'yarn'") && ContainsSubstring("llama3"));
}

TEST_CASE("Widths and group sizes follow from the heads") {
  const KvShape shape{.layers = 30, .heads = 9, .kv_heads = 3, .head_dim = 64};
  CHECK(shape.width() == 192);
  CHECK(shape.queries_per_kv_head() == 3);
  CHECK(shape == KvShape{30, 9, 3, 64});
  CHECK_FALSE(shape == KvShape{30, 9, 3, 80});
}
