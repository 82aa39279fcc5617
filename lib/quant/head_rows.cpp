#include <kvq/quant/head_rows.h>

#include <kvq/core/error.h>
#include <kvq/quant/recipe_traits.h>

namespace kvq {

namespace {

HeadRows turbo_rows(const TurboOptions& options, int bits, int head_dim) {
  HeadRows head;
  const auto add_part = [&](int channels, int channel_bits) {
    if (!options.qjl) return head.runs.push_back({1, channels, channel_bits});
    if (channel_bits > 1) head.runs.push_back({2, channels, channel_bits - 1});
    head.runs.push_back({channel_bits > 1 ? 0 : 1, channels, 1});
  };
  add_part(head_dim - options.outlier_channels, bits);
  if (options.outlier_channels > 0) add_part(options.outlier_channels, options.outlier_bits);
  return head;
}

}  // namespace

int HeadRows::scales() const {
  int sum = 0;
  for (const RowRun& run : runs) sum += run.scales;
  return sum;
}

int HeadRows::rows() const {
  int sum = 0;
  for (const RowRun& run : runs) sum += run.count;
  return sum;
}

std::int64_t HeadRows::bits() const {
  std::int64_t sum = 0;
  for (const RowRun& run : runs) sum += std::int64_t{run.count} * run.bits;
  return sum;
}

HeadRows head_rows(const SideRecipe& side, int head_dim) {
  KVQ_ASSERT(has_own_format(side.codebook));
  if (codes_blocks(side)) return {};
  if (side.codebook == CodebookKind::Turbo) return turbo_rows(side.turbo, side.bits, head_dim);
  if (side.codebook == CodebookKind::Fp8) return {{{0, head_dim, 8}}};
  if (side.codebook == CodebookKind::Vector) {
    const VectorRecipe& codec = side.vector;
    if (codec.method == VectorMethod::Product) return {{{codec.norm ? 1 : 0, codec.subspaces, codec.bits}}};
    return {{{1, head_dim, codec.bits}}};
  }
  HeadRows head;
  for (int first = 0; first < head_dim; first += kBlockFormatChannels)
    head.runs.push_back({1, kBlockFormatChannels, side.bits});
  return head;
}

}  // namespace kvq
