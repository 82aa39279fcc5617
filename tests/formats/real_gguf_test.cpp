// The embedded model. Expected figures: gguf.GGUFReader and gguf.dequantize (Python package gguf, numpy), sums in
// float64:
//   v = gguf.dequantize(t.data, t.tensor_type); v.astype(float64).sum(), (v.astype(float64) ** 2).sum()
#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "support/catch.h"
#include "support/skip.h"
#include "support/temp_dir.h"
#include "support/test_model.h"

#include <kvq/core/error.h>
#include <kvq/core/mapped_file.h>
#include <kvq/formats/gguf.h>
#include <kvq/formats/gguf_parse.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr std::uintmax_t kHeader = 1'785'664;  // where the tensor data begins

}  // namespace

TEST_CASE("SmolLM2's GGUF reads as the gguf package reads it", "[model]") {
  const auto model = test_model();
  if (!model) KVQ_SKIP("the model is not there: scripts/quickstart --build-only fetches it");
  const GgufFile file(*model);
  CHECK(file.names().size() == 272);
  CHECK(file.require_string("general.architecture") == "llama");
  CHECK(file.require_int("llama.block_count") == 30);
  CHECK(file.find_double("llama.rope.freq_base") == 100000.0);
  CHECK(file.find_bool("tokenizer.ggml.add_bos_token") == false);
  const auto& tokens = *file.find_strings("tokenizer.ggml.tokens");
  CHECK(tokens.size() == 49152);
  CHECK(tokens[1] == "<|im_start|>");
  CHECK(tokens.back() == "ectable");
  CHECK(file.find_strings("tokenizer.ggml.merges")->size() == 48900);
  CHECK(file.find_strings("tokenizer.ggml.merges")->back() == "ect able");
  CHECK((*file.find_ints("tokenizer.ggml.token_type"))[0] == 3);

  struct Expected {
    const char* name;
    const char* dtype;
    std::vector<std::int64_t> shape;
    double sum, squares;
    float first, last;
  };
  const Expected expected[] = {
      {"token_embd.weight",
       "Q8_0",
       {49152, 576},
       -15353.04449415207,
       520415.71544763993,
       -0.10654449462890625f,
       -0.0417022705078125f},
      {"blk.3.ffn_down.weight",
       "Q4_1",
       {576, 1536},
       81.66989135742188,
       30308.778811718337,
       0.08203125f,
       0.3575439453125f},
      {"blk.29.attn_norm.weight", "F32", {576}, 237.76953125, 99.64500427246094, 0.400390625f, 0.41796875f}};
  for (const Expected& one : expected) {
    INFO(one.name);
    const TensorInfo* info = file.find(one.name);
    REQUIRE(info != nullptr);
    CHECK(info->dtype == one.dtype);
    REQUIRE(info->shape == one.shape);
    const std::int64_t row = one.shape.size() > 1 ? one.shape[1] : 1;
    std::vector<float> values(static_cast<std::size_t>(one.shape[0] * row));
    file.read_rows(one.name, 0, one.shape[0], values);
    double sum = 0, squares = 0;
    for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(row)) {
      double row_sum = 0,
             row_squares = 0;  // row by row: 28 million doubles in one go lose the digits that are compared
      for (std::size_t column = at; column < at + static_cast<std::size_t>(row); ++column) {
        row_sum += values[column];
        row_squares += static_cast<double>(values[column]) * values[column];
      }
      sum += row_sum;
      squares += row_squares;
    }
    CHECK(sum == Approx(one.sum).epsilon(1e-12));
    CHECK(squares == Approx(one.squares).epsilon(1e-12));
    CHECK(values.front() == one.first);
    CHECK(values.back() == one.last);
    std::vector<float> middle(static_cast<std::size_t>(row));
    file.read_rows(one.name, one.shape[0] / 2, 1, middle);
    CHECK(std::equal(middle.begin(), middle.end(), values.begin() + one.shape[0] / 2 * row));
  }
}

TEST_CASE("SmolLM2's GGUF is refused when it is cut in its header or in any tensor", "[model][slow]") {
  const auto model = test_model();
  if (!model) KVQ_SKIP("the model is not there: scripts/quickstart --build-only fetches it");
  const TempDir folder;
  const std::filesystem::path cut = folder / "cut.gguf";
  std::filesystem::copy_file(*model, cut);
  const auto check_refused = [&](std::uintmax_t length) {
    std::filesystem::resize_file(cut, length);
    try {
      const GgufFile file(cut);
      FAIL("accepted when cut to " << length);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::Format) FAIL(error.what());
    }
  };
  std::vector<std::uintmax_t> cuts;  // in the middle of each tensor
  {
    const MappedFile whole(*model);
    for (const auto& [name, tensor] : parse_gguf("", whole.bytes()).tensors) {
      const auto begin = static_cast<std::uintmax_t>(tensor.bytes.data() - whole.bytes().data());
      cuts.push_back(begin + tensor.bytes.size() / 2);
    }
  }
  REQUIRE(cuts.size() == 272);
  std::sort(cuts.begin(), cuts.end(), std::greater<>());
  // From the end to the beginning, so that one copy does for all.
  check_refused(std::filesystem::file_size(*model) - 1);
  for (const std::uintmax_t cut_at : cuts) check_refused(cut_at);
  for (std::uintmax_t length = kHeader; length >= 512; length -= 512) check_refused(length);
  check_refused(0);
}
