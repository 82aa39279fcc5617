#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kvq-eval/inspection.h"

#include <kvq/artifacts/weight_fisher_file.h>
#include <kvq/artifacts/weights_file.h>

namespace kvq::apps {

namespace {
using Json = nlohmann::ordered_json;

void add_sizes(Inspection& inspection, Json& json, const BlockShape& shape) {
  inspection.facts.emplace_back("matrices", fmt::format("{} wide, {} in the MLP, {} weights in all", shape.hidden,
                                                        shape.intermediate, shape.kv.layers * shape.layer_elements()));
  json["hidden"] = shape.hidden;
  json["intermediate"] = shape.intermediate;
}

}  // namespace

Inspection inspect_weight_fisher(const std::filesystem::path& path, Json& json, RunContext& context) {
  const WeightFisherReader reader(path);
  Inspection inspection;
  add_provenance(inspection, json, reader.header().provenance, reader.header().shape);
  add_sizes(inspection, json, reader.shape());
  add_sample(inspection, json, reader.header());
  Table table{{"layer", "weight", "gradient rms", "gradient max", "rows without"}, {}};
  json["layer"] = Json::array();
  context.progress.begin("layers", reader.shape().kv.layers);
  for (int layer = 0; layer < reader.shape().kv.layers; ++layer) {
    Json entry = Json::object();
    for (const BlockMatrix matrix : kBlockMatrices) {
      context.cancel.check();
      const std::vector<float> roots = reader.roots(layer, matrix);
      const int columns = reader.shape().columns(matrix);
      double squares = 0, largest = 0;
      std::int64_t without = 0;
      for (std::size_t row = 0; row < roots.size() / columns; ++row) {
        double most = 0;
        for (std::size_t index = row * columns; index < (row + 1) * columns; ++index) {
          squares += static_cast<double>(roots[index]) * roots[index];
          most = std::max<double>(most, roots[index]);
        }
        largest = std::max(largest, most);
        without += most == 0 ? 1 : 0;
      }
      const double rms = std::sqrt(squares / static_cast<double>(roots.size()));
      table.rows.push_back({std::to_string(layer), block_matrix_name(matrix), short_number(rms), short_number(largest),
                            std::to_string(without)});
      entry[block_matrix_name(matrix)] = {{"rms", rms}, {"max", largest}, {"rows_without", without}};
    }
    json["layer"].push_back(std::move(entry));
    context.progress.advance(1);
  }
  context.progress.end();
  inspection.tables.push_back(std::move(table));
  return inspection;
}

Inspection inspect_weights(const std::filesystem::path& path, Json& json, RunContext& context) {
  const WeightsReader reader(path);
  const WeightsHeader& header = reader.header();
  reader.check();
  Inspection inspection;
  add_provenance(inspection, json, header.provenance, header.shape.kv);
  add_sizes(inspection, json, header.shape);
  inspection.facts.emplace_back("scheme", short_form(header.scheme));
  inspection.facts.emplace_back("bits",
                                fmt::format("{} nominal, {:.4g} counted", header.scheme.bits, header.bits_counted));
  inspection.facts.emplace_back("fingerprints",
                                fmt::format("{} passages of the calibration text", header.fingerprints.size()));
  json["scheme"] = short_form(header.scheme);
  json["bits_nominal"] = header.scheme.bits;
  json["bits_counted"] = header.bits_counted;
  json["fingerprints"] = header.fingerprints.size();
  Table table{{"layer", "weight", "size", "bits counted", "exact", "exponent"}, {}};
  json["layer"] = Json::array();
  context.progress.begin("layers", header.shape.kv.layers);
  for (int layer = 0; layer < header.shape.kv.layers; ++layer) {
    Json entry = Json::object();
    for (const BlockMatrix which : kBlockMatrices) {
      context.cancel.check();
      const WeightMatrix matrix = reader.matrix(layer, which);
      const double bits = 8.0 * static_cast<double>(matrix.counted_bytes()) / static_cast<double>(matrix.weights());
      table.rows.push_back({std::to_string(layer), block_matrix_name(which),
                            fmt::format("{} × {}", matrix.rows, matrix.columns), fmt::format("{:.3f}", bits),
                            std::to_string(matrix.sparse_values.size()), std::to_string(matrix.exponent)});
      entry[block_matrix_name(which)] = {
          {"bits_counted", bits}, {"exact", matrix.sparse_values.size()}, {"exponent", matrix.exponent}};
    }
    json["layer"].push_back(std::move(entry));
    context.progress.advance(1);
  }
  context.progress.end();
  inspection.tables.push_back(std::move(table));
  return inspection;
}

}  // namespace kvq::apps
