#include <kvq/calib/assemble.h>

#include <fmt/format.h>

#include <kvq/calib/key_metric.h>
#include <kvq/calib/scaled_half.h>
#include <kvq/calib/value_metric.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

using Part = SequenceLayout::Part;

template <class T>
std::vector<T> joined(const std::vector<SequenceReader>& sequences, const SequenceLayout& layout, int layer, Part part,
                      int threads) {
  const auto each = static_cast<std::size_t>(layout.part_bytes(part)) / sizeof(T);
  std::vector<T> all(each * sequences.size());
  parallel_for(static_cast<std::int64_t>(sequences.size()), threads, [&](std::int64_t sequence) {
    sequences[sequence].read(layer, part, all.data() + static_cast<std::size_t>(sequence) * each);
  });
  return all;
}

std::vector<double> added_up(const std::vector<double>& all, std::size_t sequences) {
  std::vector<double> sum(all.size() / sequences, 0.0);
  for (std::size_t index = 0; index < all.size(); ++index) sum[index % sum.size()] += all[index];
  return sum;
}

/// Mean over the tokens that it was taken over. Turning fp32 sums back left the two halves different in the last bit.
std::vector<double> mean_key_metric(const std::vector<SequenceReader>& sequences, const SequenceLayout& layout,
                                    int layer, int threads) {
  std::vector<double> metric =
      added_up(joined<double>(sequences, layout, layer, Part::KeyMetric, threads), sequences.size());
  const auto dim = static_cast<std::size_t>(layout.shape.head_dim);
  const auto tokens = static_cast<double>(sequences.size() * metric_tokens(0, layout.tokens).size());
  for (std::size_t first = 0; first < metric.size(); first += dim * dim) {
    for (std::size_t row = 0; row < dim; ++row) {
      for (std::size_t column = row; column < dim; ++column) {
        double &upper = metric[first + row * dim + column], &lower = metric[first + column * dim + row];
        upper = lower = 0.5 * (upper + lower) / tokens;
      }
    }
  }
  return metric;
}

CalibrationLayer layer_of(const std::vector<SequenceReader>& sequences, const SequenceLayout& layout, int layer,
                          int threads) {
  CalibrationLayer data;
  const std::pair<Part, ScaledHalf*> tensors[] = {{Part::Key, &data.key},
                                                  {Part::Value, &data.value},
                                                  {Part::KeyGrad, &data.key_grad},
                                                  {Part::ValueGrad, &data.value_grad}};
  const char* const names[] = {"key", "value", "gradient of key", "gradient of value"};
  for (const auto& [part, target] : tensors) {
    if (!layout.has(part)) continue;
    const std::vector<float> values = joined<float>(sequences, layout, layer, part, threads);
    *target = to_scaled_half(values, fmt::format("layer {}, {}", layer, names[part]), threads);
  }
  data.query_moment = added_up(joined<double>(sequences, layout, layer, Part::QueryMoment, threads), sequences.size());
  if (layout.metric) data.key_metric = mean_key_metric(sequences, layout, layer, threads);
  data.attention_mass = joined<float>(sequences, layout, layer, Part::AttentionMass, threads);
  return data;
}

}  // namespace

void assemble_calibration(const std::filesystem::path& output, bool force, const CalibrationHeader& header,
                          const SequenceLayout& layout, const std::vector<SequenceReader>& sequences, Model& model,
                          RunContext& context) {
  CalibrationWriter writer(output, force, context.threads);
  writer.write_header(header);
  context.progress.begin("writing layers", header.shape.layers);
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    context.cancel.check();
    CalibrationLayer data = layer_of(sequences, layout, layer, context.threads);
    if (header.metrics) {
      const std::vector<at::Tensor> weights = model.block_tensors(layer);
      KVQ_ASSERT(weights.size() == 4);  // Model::block_tensors()
      data.value_metric = value_metric(weights[1].to(at::kCPU), header.shape.kv_heads, header.shape.head_dim);
    }
    writer.write_layer(layer, data);
    context.progress.advance(1);
  }
  context.progress.end();
  writer.finish();
}

}  // namespace kvq
