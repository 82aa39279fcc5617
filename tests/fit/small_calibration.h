#pragma once
// The synthetic calibration of scripts/reference/expected_fit.py: integer formulas, every number exact in fp16.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/core/half.h>

namespace kvq::test {

inline constexpr KvShape kSmallShape = {.layers = 2, .heads = 2, .kv_heads = 2, .head_dim = 4};
inline constexpr int kSmallSequences = 3, kSmallSeqlen = 50;

inline float small_value(int layer, Side side, bool gradient, int token, int channel) {
  std::uint32_t h = static_cast<std::uint32_t>(token) * 7919u + static_cast<std::uint32_t>(channel) * 104729u +
                    static_cast<std::uint32_t>(layer) * 1299709u + static_cast<std::uint32_t>(side) * 15485863u +
                    (gradient ? 32452843u : 0u);
  std::uint32_t total = 0;
  for (int round = 0; round < 3; ++round) {
    h = h * 1664525u + 1013904223u;
    total += (h >> 8) % 341u;
  }
  float x = (static_cast<float>(total) - 510.0f) / 256.0f * static_cast<float>(1 << channel % 3);
  if (!gradient && token % kSmallSeqlen == 0) x *= 8;  // first tokens stand out
  return x;
}

/// Changes single numbers before they are stored.
using Change = std::function<float(float value, int layer, Side side, bool gradient, int token, int channel)>;

/// Element of key_metric or value_metric: symmetric, with a diagonal of powers of four, whose roots are exact.
inline double small_metric(int layer, Side side, int kv_head, int row, int column) {
  const int low = std::min(row, column), high = std::max(row, column);
  if (low == high) return static_cast<double>(1 << 2 * ((low + kv_head + layer + static_cast<int>(side)) % 3));
  return 0.25 * ((low * 5 + high * 3 + kv_head + layer) % 4 - 1.5);
}
/// Softmax weight that a token receives: a power of four too, and the mean is the number of query heads.
inline float small_mass(int token) { return token % 3 == 1 ? 4.0f : 1.0f; }

/// What a file has beside keys and values.
struct SmallContents {
  bool gradients = true, metrics = false;
};

inline void write_small_calibration(const std::filesystem::path& path, const Change& change = nullptr,
                                    const std::string& model_sha256 = std::string(64, 'a'),
                                    const std::string& query_heads = "joint", const SmallContents& contents = {},
                                    const ModelRope* rope = nullptr) {
  CalibrationHeader header;
  header.provenance.model_sha256 = model_sha256;
  header.provenance.tokenizer_sha256 = std::string(64, 'b');
  header.provenance.text_sha256 = std::string(64, 'c');
  header.provenance.config = "samples = 3\n";
  header.shape = kSmallShape;
  header.rope.theta = 10000;
  header.rope.rotary_dim = kSmallShape.head_dim;
  if (rope) header.rope = *rope;
  header.sequences = kSmallSequences;
  header.seqlen = kSmallSeqlen;
  header.bos = "never";
  header.query_heads = query_heads;
  header.gradients = contents.gradients;
  header.metrics = contents.metrics;
  const int tokens = kSmallSequences * kSmallSeqlen;
  for (int token = 0; token < tokens; ++token) header.tokens.push_back(token % 31);
  header.domains.assign(kSmallSequences, "text");
  header.loss.assign(kSmallSequences, 3.0);
  CalibrationWriter writer(path, true, 1);
  writer.write_header(header);
  for (int layer = 0; layer < kSmallShape.layers; ++layer) {
    CalibrationLayer data;
    for (Side side : kSides) {
      for (bool gradient : {false, true}) {
        ScaledHalf& tensor =
            side == Side::Key ? (gradient ? data.key_grad : data.key) : (gradient ? data.value_grad : data.value);
        if (gradient) tensor.scale = 0x1p-20f;  // as small as real ones
        for (int token = 0; token < tokens; ++token) {
          for (int channel = 0; channel < kSmallShape.width(); ++channel) {
            float x = small_value(layer, side, gradient, token, channel);
            if (change) x = change(x, layer, side, gradient, token, channel);
            tensor.values.push_back(float_to_half(x));
          }
        }
      }
    }
    data.query_moment.assign(kSmallShape.kv_heads * kSmallShape.head_dim * kSmallShape.head_dim, 0.0);
    for (int token = 0; token < tokens; ++token) data.attention_mass.push_back(small_mass(token));
    for (int index = 0; contents.metrics && index < kSmallShape.width() * kSmallShape.head_dim; ++index) {
      const int dim = kSmallShape.head_dim, head = index / (dim * dim), row = index / dim % dim, column = index % dim;
      data.key_metric.push_back(small_metric(layer, Side::Key, head, row, column));
      data.value_metric.push_back(small_metric(layer, Side::Value, head, row, column));
    }
    writer.write_layer(layer, data);
  }
  writer.finish();
}

}  // namespace kvq::test
