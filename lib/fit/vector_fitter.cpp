#include <kvq/fit/vector_fitter.h>

#include <algorithm>
#include <cstddef>

#include <kvq/core/error.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/vector_sizes.h>

namespace kvq {

namespace {

constexpr std::int64_t kMostRows = 16384, kRunRows = 64;

/// Consecutive tokens of a kv head.
struct Run {
  std::int64_t token = 0;
  int kv_head = 0;
};

/// Rows that one codec is fitted to.
struct CodecSample {
  std::vector<float> x, row_weights, channel_weights;
};

/// Whole blocks of a delta codec, where there are as many tokens: its anchors then fall on the first row of each run.
std::int64_t run_length(const VectorRecipe& recipe, std::int64_t tokens) {
  const std::int64_t unit = recipe.method == VectorMethod::Delta ? std::min(block_rows(recipe), tokens) : 1;
  return std::min((kRunRows + unit - 1) / unit, tokens / unit) * unit;
}

/// Evenly over sequences, heads and tokens; the first tokens that count are always among them.
std::vector<Run> choose_runs(const TokenSample& sample, int first_head, int heads, std::int64_t length) {
  const std::int64_t tokens = sample.seqlen - sample.sinks, of_head = tokens / length;
  const std::int64_t all = sample.sequences * heads * of_head;
  const std::int64_t wanted = std::min(all, std::max<std::int64_t>(kMostRows / length, 1));
  std::vector<Run> runs;
  for (std::int64_t index = 0; index < wanted; ++index) {
    const std::int64_t run = index * all / wanted, sequence = run / (heads * of_head);
    runs.push_back({sequence * sample.seqlen + sample.sinks + run % of_head * length,
                    first_head + static_cast<int>(run / of_head % heads)});
  }
  return runs;
}

CodecSample gather(const TokenSample& sample, std::span<const float> roots, int head_dim, const std::vector<Run>& runs,
                   std::int64_t length) {
  CodecSample result;
  const auto dim = static_cast<std::size_t>(head_dim);
  std::vector<double> rows, channels(dim);
  double all = 0;
  for (const Run& run : runs) {
    for (std::int64_t token = run.token; token < run.token + length; ++token) {
      const auto at = static_cast<std::size_t>(token) * static_cast<std::size_t>(sample.width) +
                      static_cast<std::size_t>(run.kv_head) * dim;
      result.x.insert(result.x.end(), sample.x.begin() + static_cast<std::ptrdiff_t>(at),
                      sample.x.begin() + static_cast<std::ptrdiff_t>(at + dim));
      if (roots.empty()) continue;
      double sum = 0;
      for (std::size_t channel = 0; channel < dim; ++channel) {
        const double root = static_cast<double>(roots[at + channel]);
        sum += root * root;
        channels[channel] += root * root;
      }
      rows.push_back(sum);
      all += sum;
    }
  }
  if (!(all > 0)) return result;
  // Both with mean 1: squares of gradients may be beyond a float.
  for (const double row : rows)
    result.row_weights.push_back(static_cast<float>(row / all * static_cast<double>(rows.size())));
  for (const double channel : channels)
    result.channel_weights.push_back(static_cast<float>(channel / all * static_cast<double>(dim)));
  return result;
}

/// Mean over the full blocks of all sequences, all kv heads; where a sequence has none, of its rows times those of a
/// block.
double mean_block_bytes(const SideQuantizer& quantizer, const TokenSample& sample, int threads) {
  const std::int64_t rows = block_rows(quantizer.recipe.vector);
  const auto width = static_cast<std::size_t>(sample.width);
  const std::int64_t partial_blocks = sample.sinks > 0 ? (sample.sinks + rows - 1) / rows : 0;
  const std::int64_t first = std::min(partial_blocks * rows, sample.seqlen);
  const bool full = sample.seqlen - first >= rows;
  const std::int64_t begin = full ? first : sample.sinks;
  std::int64_t bytes = 0, coded = 0;
  for (std::int64_t sequence = 0; sequence < sample.sequences; ++sequence) {
    const std::int64_t tokens = full ? (sample.seqlen - first) / rows * rows : sample.seqlen - begin;
    const auto at = static_cast<std::size_t>(sequence * sample.seqlen + begin) * width;
    std::vector<float> x(sample.x.begin() + static_cast<std::ptrdiff_t>(at),
                         sample.x.begin() + static_cast<std::ptrdiff_t>(at + static_cast<std::size_t>(tokens) * width));
    VectorBlocks blocks(head_codecs(quantizer));
    blocks.append(x, begin, threads);
    for (const std::int64_t block : blocks.closed_bytes()) bytes += block;
    for (int kv_head = 0; kv_head < quantizer.kv_heads; ++kv_head) {
      std::vector<std::byte> rest;
      if (const OpenBlock* open = blocks.open(kv_head)) open->close(rest);
      bytes += static_cast<std::int64_t>(rest.size());
    }
    coded += tokens;
  }
  return static_cast<double>(bytes) * static_cast<double>(rows) / static_cast<double>(coded);
}

}  // namespace

void fit_vector_tables(SideQuantizer& quantizer, const TokenSample& sample, std::span<const float> roots, int threads,
                       bool& fell_back) {
  const SideRecipe& recipe = quantizer.recipe;
  KVQ_ASSERT(sample.seqlen > sample.sinks && sample.sequences > 0);
  const std::int64_t length = run_length(recipe.vector, sample.seqlen - sample.sinks);
  const int codecs = codec_count(recipe, quantizer.kv_heads), heads = quantizer.kv_heads / codecs;
  quantizer.vector_tables.clear();
  for (int codec = 0; codec < codecs; ++codec) {
    const CodecSample rows =
        gather(sample, roots, quantizer.head_dim, choose_runs(sample, codec * heads, heads, length), length);
    fell_back |= !roots.empty() && rows.row_weights.empty();
    quantizer.vector_tables.push_back(train_vector_tables(recipe.vector, quantizer.head_dim,
                                                          {rows.x, rows.row_weights, rows.channel_weights, threads}));
  }
  if (has_varying_blocks(recipe.vector)) quantizer.block_bytes = mean_block_bytes(quantizer, sample, threads);
}

}  // namespace kvq
