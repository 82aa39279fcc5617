#include <kvq/eval/decoded_weights.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

namespace kvq {

namespace {

constexpr std::int64_t kGrainRows = 64;

class DecodedWeights final : public BlockWeights {
 public:
  DecodedWeights(std::shared_ptr<const WeightsReader> file, int threads) : file_(std::move(file)), threads_(threads) {}
  void read(int layer, BlockMatrix matrix, std::span<float> out) override {
    const WeightMatrix data = file_->matrix(layer, matrix);
    const auto columns = static_cast<std::size_t>(data.columns);
    KVQ_ASSERT(static_cast<std::int64_t>(out.size()) == data.weights());
    parallel_ranges(data.rows, kGrainRows, threads_, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        data.decode_row(static_cast<int>(row), out.subspan(static_cast<std::size_t>(row) * columns, columns));
    });
  }

 private:
  std::shared_ptr<const WeightsReader> file_;
  int threads_;
};

}  // namespace

std::shared_ptr<BlockWeights> decoded_weights(std::shared_ptr<const WeightsReader> file, int threads) {
  return std::make_shared<DecodedWeights>(std::move(file), threads);
}

}  // namespace kvq
