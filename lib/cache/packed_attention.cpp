#include <kvq/cache/packed_attention.h>

#include <algorithm>
#include <atomic>
#include <cmath>

#include <ATen/Parallel.h>

#include <kvq/core/error.h>

namespace kvq {

namespace {

using layout::kPageTokens;

/// A context is split into so many pages, so that all threads have work: few where there are few queries. The same
/// whatever the number of threads.
constexpr std::int64_t kSplitPages = 8, kSplitPagesOfMany = 128;
constexpr std::int64_t kFewQueries = 8;
/// Blocks of queries whose results are held at once.
constexpr std::size_t kBlocksAtOnce = 16;

/// Scales by 1 / sqrt(head_dim) and rotates by the slot, and by the page where keys are stored after RoPE.
void prepare_queries(PackedPool& pool, int layer, std::span<const float> query, std::int64_t first,
                     std::vector<float>& out) {
  const RopeAngles& angles = pool.angles(layer);
  const KvShape& shape = pool.quantizer().shape;
  const std::int64_t of_token = std::int64_t{shape.heads} * shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  out.assign(query.begin(), query.end());
  for (float& x : out) x *= scale;
  std::vector<float> turned(static_cast<std::size_t>(of_token));
  for (std::int64_t token = 0; token * of_token < static_cast<std::int64_t>(out.size()); ++token) {
    float* row = out.data() + token * of_token;
    const std::int64_t position = first + token;
    const auto turn = [&](const float* cosine, const float* sine) {
      pool.loops().rotate_vectors(row, shape.heads, shape.head_dim, angles.pairs(), cosine, sine, turned.data());
      std::copy(turned.begin(), turned.end(), row);
    };
    const int slot = static_cast<int>(position % kPageTokens);
    turn(angles.cos_of_slot(slot), angles.sin_of_slot(slot));
    if (pool.quantizer().recipe.key.post_rope) {
      turn(angles.cos_of_pages(position / kPageTokens), angles.sin_of_pages(position / kPageTokens));
    }
  }
  if (const auto& rotation = pool.layer(layer).rotation(Side::Key)) rotation->forward_queries(out);
}

/// out = the results of consecutive ranges of pages together, for one kv head.
void merge(const std::vector<const PartialResult*>& parts, const QueryBlock& block, const KvShape& shape, int kv_head,
           float* out) {
  const int group = shape.queries_per_kv_head(), head_dim = shape.head_dim;
  for (int row = 0; row < block.tokens * group; ++row) {
    const auto at = static_cast<std::size_t>(row);
    float largest = parts.front()->largest[at];
    for (const PartialResult* part : parts) largest = std::max(largest, part->largest[at]);
    double total = 0;
    for (const PartialResult* part : parts) total += part->total[at] * std::exp(part->largest[at] - largest);
    float* to = out + (std::int64_t{row / group} * shape.heads + kv_head * group + row % group) * head_dim;
    std::fill_n(to, head_dim, 0.0f);
    for (const PartialResult* part : parts) {
      const auto weight = static_cast<float>(std::exp(part->largest[at] - largest) / total);
      const float* from = part->sum.data() + row * part->stride;
      for (int channel = 0; channel < head_dim; ++channel) to[channel] += weight * from[channel];
    }
  }
}

}  // namespace

void PackedAttention::attend(const PackedSequence& sequence, int layer, std::span<const float> query,
                             std::span<float> out) {
  PackedPool& pool = sequence.pool();
  const KvShape& shape = pool.quantizer().shape;
  const std::int64_t of_token = std::int64_t{shape.heads} * shape.head_dim;
  const std::int64_t tokens = static_cast<std::int64_t>(query.size()) / of_token;
  const std::int64_t length = sequence.length(layer), first = length - tokens;
  KVQ_ASSERT(tokens > 0 && first >= 0 && out.size() == query.size());
  pool.angles(layer).reserve(layout::pages(length));
  prepare_queries(pool, layer, query, first, rotated_);

  std::vector<QueryBlock> blocks;
  for (std::int64_t end = tokens; end > 0;) {  // the longest contexts first
    const std::int64_t page = (first + end - 1) / kPageTokens,
                       begin = std::max<std::int64_t>(0, page * kPageTokens - first);
    blocks.push_back({rotated_.data() + begin * of_token, first + begin, static_cast<int>(end - begin)});
    end = begin;
  }
  const std::int64_t step = tokens <= kFewQueries ? kSplitPages : kSplitPagesOfMany;
  // Where there is enough for all threads, a task takes all kv heads, whose outliers stand in the same lists.
  const bool together = tokens <= kFewQueries && layout::pages(length) / step >= 2 * threads_;
  const int heads = together ? shape.kv_heads : 1;
  for (std::size_t at = 0; at < blocks.size(); at += kBlocksAtOnce) {
    std::vector<AttentionTask> tasks;
    for (std::size_t block = at; block < std::min(blocks.size(), at + kBlocksAtOnce); ++block) {
      const std::int64_t pages = blocks[block].first_position / kPageTokens + 1;
      const std::int64_t seen = pool.quantizer().rope.first_seen(layer, blocks[block].first_position) / kPageTokens;
      for (int head = 0; head < shape.kv_heads; head += heads) {
        for (std::int64_t page = seen; page < pages; page += step) {
          tasks.push_back(
              {&sequence, layer, blocks[block], page, std::min(pages, page + step), head, head + heads, {}});
        }
      }
    }
    run(tasks);
    // Tasks of the same queries and heads stand one after the other.
    for (std::size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
      const AttentionTask& task = tasks[begin];
      const auto same = [&](const AttentionTask& other) {
        return other.block.query == task.block.query && other.first_head == task.first_head;
      };
      for (end = begin + 1; end < tasks.size() && same(tasks[end]);) ++end;
      for (int kv_head = task.first_head; kv_head < task.last_head; ++kv_head) {
        std::vector<const PartialResult*> parts;
        for (std::size_t part = begin; part < end; ++part) {
          parts.push_back(&tasks[part].results[static_cast<std::size_t>(kv_head - task.first_head)]);
        }
        merge(parts, task.block, shape, kv_head, out.data() + (task.block.query - rotated_.data()));
      }
    }
  }
  if (const auto& rotation = pool.layer(layer).rotation(Side::Value)) rotation->inverse_sums(out);
}

void PackedAttention::run(std::vector<AttentionTask>& tasks) {
  const auto workers = std::min<std::int64_t>(std::max(1, threads_), static_cast<std::int64_t>(tasks.size()));
  scratch_.resize(std::max(scratch_.size(), static_cast<std::size_t>(workers)));
  std::atomic<std::size_t> next{0};
  // The threads of the tensor library: they are there already, and nothing else runs beside them.
  at::parallel_for(0, workers, 1, [&](std::int64_t first_worker, std::int64_t) {
    AttentionScratch& scratch = scratch_[static_cast<std::size_t>(first_worker)];
    for (std::size_t task = next++; task < tasks.size(); task = next++) tasks[task].run(scratch);
  });
}

}  // namespace kvq
