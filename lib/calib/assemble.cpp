#include <kvq/calib/assemble.h>

#include <fmt/format.h>

#include <kvq/calib/scaled_half.h>
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

CalibrationLayer layer_of(const std::vector<SequenceReader>& sequences, const SequenceLayout& layout, int layer,
                          int threads) {
  CalibrationLayer data;
  const std::pair<Part, ScaledHalf*> tensors[] = {{Part::Key, &data.key},
                                                  {Part::Value, &data.value},
                                                  {Part::KeyGrad, &data.key_grad},
                                                  {Part::ValueGrad, &data.value_grad}};
  const char* const names[] = {"key", "value", "gradient of key", "gradient of value"};
  for (const auto& [part, target] : tensors) {
    const std::vector<float> values = joined<float>(sequences, layout, layer, part, threads);
    *target = to_scaled_half(values, fmt::format("layer {}, {}", layer, names[part]), threads);
  }
  const std::vector<double> moments = joined<double>(sequences, layout, layer, Part::QueryMoment, threads);
  data.query_moment.assign(moments.size() / sequences.size(), 0.0);
  for (std::size_t index = 0; index < moments.size(); ++index)
    data.query_moment[index % data.query_moment.size()] += moments[index];
  data.attention_mass = joined<float>(sequences, layout, layer, Part::AttentionMass, threads);
  return data;
}

}  // namespace

void assemble_calibration(const std::filesystem::path& output, bool force, const CalibrationHeader& header,
                          const SequenceLayout& layout, const std::vector<SequenceReader>& sequences,
                          RunContext& context) {
  CalibrationWriter writer(output, force, context.threads);
  writer.write_header(header);
  context.progress.begin("writing layers", header.shape.layers);
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    context.cancel.check();
    writer.write_layer(layer, layer_of(sequences, layout, layer, context.threads));
    context.progress.advance(1);
  }
  context.progress.end();
  writer.finish();
}

}  // namespace kvq
