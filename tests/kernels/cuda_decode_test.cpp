#include <algorithm>
#include <span>
#include <vector>

#include "cuda_cache.h"
#include "support/catch.h"

using namespace kvq;
using namespace kvq::test;

namespace {

/// fp16 operands, fp32 sums.
constexpr double kTolerance = 2e-3;

/// Of the sequence that is worst.
double worst_error(const CacheRecipe& recipe) {
  const RandomCache cache(recipe);
  const std::vector<float> output = cache.attend();
  const std::vector<double> expected = cache.expected();
  const std::size_t row = output.size() / recipe.lengths.size();
  double worst = 0;
  for (std::size_t at = 0; at < output.size(); at += row) {
    const double error = relative_error(std::span(output).subspan(at, row), std::span(expected).subspan(at, row));
    worst = error > worst || error != error ? error : worst;
  }
  return worst;
}

/// Says why on a machine without a GPU; there nothing is checked.
bool skipped() {
  const std::string reason = no_gpu_reason();
  if (!reason.empty()) WARN("kvq test skipped: " << reason);
  return !reason.empty();
}

void check(const CacheRecipe& recipe) {
  const double error = worst_error(recipe);
  CAPTURE(recipe.heads, recipe.kv_heads, recipe.head_dim, recipe.key_bits, recipe.value_bits, error);
  CHECK(error <= kTolerance);
}

}  // namespace

TEST_CASE("Decode attention equals the double-precision reference for every head_dim and width", "[gpu]") {
  if (skipped()) return;
  for (const int head_dim : {64, 80, 96, 128, 256}) {
    for (const auto& [key_bits, value_bits] :
         std::vector<std::pair<int, int>>{{2, 2}, {3, 3}, {4, 4}, {8, 8}, {1, 1}, {5, 6}, {3, 7}, {8, 2}}) {
      CacheRecipe recipe;
      recipe.head_dim = head_dim;
      recipe.key_bits = key_bits, recipe.value_bits = value_bits;
      recipe.heads = 6, recipe.kv_heads = 2;
      recipe.seed = static_cast<unsigned>(head_dim * 100 + key_bits * 10 + value_bits);
      check(recipe);
    }
  }
}

TEST_CASE("Decode attention shares kv heads among any number of query heads", "[gpu]") {
  if (skipped()) return;
  for (const auto& [heads, kv_heads] : std::vector<std::pair<int, int>>{
           {1, 1}, {2, 2}, {9, 3}, {8, 1}, {32, 8}, {64, 8}, {9, 9}, {20, 10}, {14, 2}, {40, 40}}) {
    CacheRecipe recipe;
    recipe.heads = heads, recipe.kv_heads = kv_heads;
    recipe.head_dim = kv_heads == 40 ? 64 : 128;
    recipe.lengths = {70, 1, 200};
    recipe.seed = static_cast<unsigned>(heads * 100 + kv_heads);
    check(recipe);
    recipe.own_books = true;
    check(recipe);
  }
}

TEST_CASE("Decode attention takes batches of unequal and long sequences", "[gpu]") {
  if (skipped()) return;
  CacheRecipe recipe;
  recipe.lengths = {4097, 0, 1, 777, 2048, 64};
  check(recipe);
  recipe.lengths = {4097};
  recipe.heads = 32, recipe.kv_heads = 8;
  for (const int splits : {0, 1, 2, 7, 64}) {
    recipe.splits = splits;
    check(recipe);
  }
}

TEST_CASE("Decode attention with and without outliers and sinks", "[gpu]") {
  if (skipped()) return;
  for (const double outliers : {0.0, 0.003, 0.05}) {
    for (const int sinks : {0, 1, 5}) {
      CacheRecipe recipe;
      recipe.outliers = outliers, recipe.sinks = sinks;
      recipe.lengths = {300, 3, 65};
      check(recipe);
    }
  }
}

TEST_CASE("Decode attention reads outliers of keys from overflow blocks", "[gpu]") {
  if (skipped()) return;
  CacheRecipe recipe;
  recipe.lengths = {260, 64, 100};
  recipe.heads = 12, recipe.kv_heads = 3, recipe.head_dim = 64;
  for (const std::int64_t capacity : {0, 8, 64}) {
    recipe.capacity = capacity;
    CHECK(RandomCache(recipe).overflow_blocks() > 0);
    check(recipe);
  }
  recipe.full_token_rate = 0.05;  // longer lists than are copied, and long chains
  recipe.capacity = -1;
  for (const int head_dim : {64, 128, 256}) {
    recipe.head_dim = head_dim;
    check(recipe);
  }
}

TEST_CASE("Decode attention survives degenerate and extreme data", "[gpu]") {
  if (skipped()) return;
  CacheRecipe recipe;
  recipe.lengths = {200, 17};
  recipe.constant_channels = 0.5;
  check(recipe);
  recipe.constant_channels = 1.0;
  check(recipe);
  recipe.constant_channels = 0.0;
  recipe.query_size = 0.0;  // all weights equal
  recipe.key_size = 1.0;
  check(recipe);
  recipe.query_size = 1.0;
  for (const int exponent : {-40, -12, 12, 40}) {
    recipe.key_exponent = recipe.value_exponent = exponent;
    check(recipe);
  }
}

TEST_CASE("Decode attention adds outliers of values of any size and number", "[gpu]") {
  if (skipped()) return;
  for (const double size : {1.0, 300.0, 5000.0}) {
    CacheRecipe recipe;
    recipe.value_outliers = size;
    recipe.lengths = {300, 17};
    check(recipe);
    recipe.outliers = 0.2;
    check(recipe);
    recipe.outliers = 1.0;  // every value
    check(recipe);
  }
}

TEST_CASE("Decode attention takes frequencies that are all high, or all zero", "[gpu]") {
  if (skipped()) return;
  for (const double theta : {2.0, 100.0, 1e300}) {
    for (const int head_dim : {64, 80, 128}) {
      CacheRecipe recipe;
      recipe.theta = theta, recipe.head_dim = head_dim;
      recipe.lengths = {130, 64};
      check(recipe);
    }
  }
}

TEST_CASE("Decode attention keeps exact angles at 128K tokens", "[gpu][slow]") {
  if (skipped()) return;
  CacheRecipe recipe;
  recipe.heads = 4, recipe.kv_heads = 1, recipe.head_dim = 64;
  recipe.lengths = {131072 + 5};
  recipe.theta = 500000.0;
  check(recipe);
}
