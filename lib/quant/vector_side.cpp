#include <kvq/quant/vector_side.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

std::optional<std::string> vector_problem(const SideRecipe& side) {
  if (side.codebook != CodebookKind::Vector) {
    if (side.vector == VectorRecipe{}) return std::nullopt;
    return fmt::format("codec {} is for codebook vector", short_form(side.vector));
  }
  const std::string name = vector_head(side.vector);
  if (side.bits != side.vector.bits) return fmt::format("{} bits beside codec {}", side.bits, short_form(side.vector));
  if (side.qnorm) return fmt::format("qnorm is for fitted codebooks (nuq), not for {}", name);
  if (side.share == Share::Channels) return fmt::format("{} can have share=layer and share=head", name);
  if (side.weights != FitWeights::Fisher && !fits_with_weights(side))
    return fmt::format("weights= is for nuq and pq; {} is fitted without weights", name);
  if (side.weights == FitWeights::FisherUnscaled)
    return "weights=fisher-unscaled is for normalised channels; pq has weights=fisher, query or none";
  return std::nullopt;
}

void check_vector_shape(const Recipe& recipe, Side which, int head_dim) {
  try {
    check_vector_dim(recipe.side(which).vector, head_dim);
  } catch (const Error& error) {
    fail(error.kind(), fmt::format("recipe {}, {}: {}", short_form(recipe), side_name(which), error.what()));
  }
}

int codec_count(const SideRecipe& side, int kv_heads) {
  if (side.codebook != CodebookKind::Vector) return 0;
  return side.share == Share::Head ? kv_heads : 1;
}

namespace {

std::vector<std::shared_ptr<const VectorCodec>> turbo_codecs(const SideQuantizer& quantizer) {
  const int kv_heads = quantizer.kv_heads;
  const auto outliers = static_cast<std::size_t>(quantizer.recipe.turbo.outlier_channels);
  if (!quantizer.turbo || quantizer.turbo->dim() != quantizer.head_dim ||
      quantizer.outlier_channels.size() != outliers * static_cast<std::size_t>(kv_heads)) {
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has no tables of turbo for {} kv heads of {} channels", kv_heads, quantizer.head_dim));
  }
  std::vector<std::shared_ptr<const VectorCodec>> codecs;
  for (int kv_head = 0; kv_head < kv_heads; ++kv_head) {
    if (outliers == 0 && kv_head > 0) {
      codecs.push_back(codecs.front());
      continue;
    }
    const auto first = quantizer.outlier_channels.begin() + static_cast<std::ptrdiff_t>(outliers) * kv_head;
    codecs.push_back(std::make_shared<TurboCodec>(
        quantizer.turbo, std::vector<std::int32_t>(first, first + static_cast<std::ptrdiff_t>(outliers)),
        quantizer.exponent));
  }
  return codecs;
}

}  // namespace

std::vector<std::shared_ptr<const VectorCodec>> head_codecs(const SideQuantizer& quantizer) {
  if (quantizer.recipe.codebook == CodebookKind::Turbo) return turbo_codecs(quantizer);
  const int count = codec_count(quantizer.recipe, quantizer.kv_heads);
  if (quantizer.vector_tables.size() != static_cast<std::size_t>(count)) {
    fail(ErrorKind::Mismatch, fmt::format("quantizer has {} tables of {}; its recipe needs {}",
                                          quantizer.vector_tables.size(), codebook_name(quantizer.recipe), count));
  }
  std::vector<std::shared_ptr<const VectorCodec>> codecs;
  for (const std::vector<std::byte>& tables : quantizer.vector_tables)
    codecs.push_back(make_codec(quantizer.recipe.vector, quantizer.head_dim, tables));
  codecs.resize(static_cast<std::size_t>(quantizer.kv_heads), codecs.front());
  return codecs;
}

VectorBlocks::VectorBlocks(std::vector<std::shared_ptr<const VectorCodec>> codecs) {
  for (std::shared_ptr<const VectorCodec>& codec : codecs) heads_.push_back({std::move(codec), nullptr, {}});
}

void VectorBlocks::append(std::span<float> x, std::int64_t first_position, int threads) {
  parallel_for(static_cast<std::int64_t>(heads_.size()), threads,
               [&](std::int64_t kv_head) { append_head(static_cast<int>(kv_head), x, first_position); });
}

void VectorBlocks::append_head(int kv_head, std::span<float> x, std::int64_t first_position) {
  Head& head = heads_[static_cast<std::size_t>(kv_head)];
  const std::int64_t block = head.codec->block_rows();
  const auto dim = static_cast<std::size_t>(head.codec->dim()), width = dim * heads_.size();
  const auto tokens = static_cast<std::int64_t>(x.size() / width);
  std::vector<float> rows;
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t position = first_position + done, end = (position / block + 1) * block;
    const std::int64_t count = std::min(tokens - done, end - position);
    float* values = x.data() + static_cast<std::size_t>(done) * width + static_cast<std::size_t>(kv_head) * dim;
    rows.resize(static_cast<std::size_t>(count) * dim);
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row)
      std::copy_n(values + row * width, dim, rows.begin() + static_cast<std::ptrdiff_t>(row * dim));
    if (!head.open) head.open = head.codec->open_block();
    const std::int64_t before = head.open->rows();
    try {
      head.open->append(rows, rows);
    } catch (const VectorOverflow& overflow) {
      throw ExactOverflow(done + overflow.row - before, kv_head * static_cast<int>(dim) + overflow.channel,
                          overflow.value, overflow.limit);
    }
    for (std::size_t row = 0; row < static_cast<std::size_t>(count); ++row)
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(row * dim), dim, values + row * width);
    done += count;
    if (position + count < end) break;
    head.closed.emplace_back();
    head.open->close(head.closed.back());
    head.open.reset();
  }
}

std::vector<std::int64_t> VectorBlocks::closed_bytes() const {
  std::vector<std::int64_t> bytes(heads_.front().closed.size());
  for (const Head& head : heads_) {
    for (std::size_t block = 0; block < bytes.size(); ++block)
      bytes[block] += static_cast<std::int64_t>(head.closed[block].size());
  }
  return bytes;
}

}  // namespace kvq
