#pragma once
// Paths, expected numbers and small helpers of the model's tests.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <nlohmann/json.hpp>

#include <kvq/model/model.h>
#include <kvq/model/rope.h>

namespace kvq::test {

inline const std::filesystem::path kSource = KVQ_SOURCE_DIR;

inline nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

/// {"shape", "data"} of the golden files.
inline at::Tensor tensor_of(const nlohmann::json& packed) {
  auto data = packed.at("data").get<std::vector<float>>();
  const auto shape = packed.at("shape").get<std::vector<std::int64_t>>();
  return at::from_blob(data.data(), shape, at::kFloat).clone();
}

inline double max_abs_difference(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>();
}

inline double relative_error(const at::Tensor& a, const at::Tensor& expected) {
  return (a.to(at::kDouble).sub(expected.to(at::kDouble)).norm().div(expected.to(at::kDouble).norm())).item<double>();
}

/// Final hidden states of `ids`, handed over in calls of `step` tokens.
inline at::Tensor final_hidden(Model& model, const std::vector<std::int32_t>& ids, AttentionBackend& attention,
                               std::size_t step) {
  std::vector<at::Tensor> parts;
  for (std::size_t first = 0; first < ids.size(); first += step) {
    const std::size_t count = std::min(step, ids.size() - first);
    at::Tensor hidden = model.embed({ids.begin() + first, ids.begin() + first + count});
    for (int layer = 0; layer < model.config().kv.layers; ++layer) {
      hidden = model.layer_forward(layer, hidden, static_cast<std::int64_t>(first), attention, nullptr);
    }
    parts.push_back(hidden);
  }
  return at::cat(parts, 0);
}

inline at::Tensor final_hidden(Model& model, const std::vector<std::int32_t>& ids) {
  ExactAttention attention(model.config().kv, model.config().rope);
  return final_hidden(model, ids, attention, ids.size());
}

}  // namespace kvq::test
