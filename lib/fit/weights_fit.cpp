#include <kvq/fit/weights_fit.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/fit/weight_fitter.h>

namespace kvq {

std::vector<WeightsReport> fit_weights(const WeightFisherReader& fisher, const ReadMatrix& read,
                                       const std::vector<WeightScheme>& schemes,
                                       const std::vector<WeightsWriter*>& writers, RunContext& context) {
  KVQ_ASSERT(schemes.size() == writers.size());
  const BlockShape& shape = fisher.shape();
  std::vector<WeightFitError> errors(schemes.size());
  std::vector<float> weights;
  context.progress.begin("fit, matrices", static_cast<std::int64_t>(kBlockMatrices.size()) * shape.kv.layers);
  for (int layer = 0; layer < shape.kv.layers; ++layer) {
    for (const BlockMatrix matrix : kBlockMatrices) {
      context.cancel.check();
      const std::vector<float> roots = fisher.roots(layer, matrix);
      weights.resize(roots.size());
      read(layer, matrix, weights);
      for (std::size_t index = 0; index < schemes.size(); ++index) {
        const std::int64_t before = errors[index].unweighted_rows;
        try {
          writers[index]->write_matrix(layer, matrix,
                                       fit_weight_matrix(weights, roots, shape.rows(matrix), shape.columns(matrix),
                                                         schemes[index], context.threads, errors[index]));
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::Numeric && error.kind() != ErrorKind::Usage) throw;
          fail(error.kind(), fmt::format("layer {}, weight {}: {}", layer, block_matrix_name(matrix), error.what()));
        }
        if (const std::int64_t rows = errors[index].unweighted_rows - before; rows > 0 && index == 0) {
          context.log.warning(fmt::format("layer {}, weight {}: {} without any gradient; fitted with equal weights",
                                          layer, block_matrix_name(matrix), plural(rows, "row")));
        }
      }
      context.progress.advance(1);
    }
  }
  context.progress.end();
  std::vector<WeightsReport> reports;
  for (std::size_t index = 0; index < schemes.size(); ++index) {
    const WeightFitError& error = errors[index];
    reports.push_back({error.weights > 0 ? error.squares / error.weights : 0.0, writers[index]->bits_counted()});
  }
  return reports;
}

}  // namespace kvq
