#include <kvq/cache/attention_task.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <kvq/model/vector_math.h>

namespace kvq {

namespace {

using layout::kPageTokens;

/// Pages whose outliers are read at once, for all kv heads of the task.
constexpr std::int64_t kOpenPages = 16;

class Run {
 public:
  Run(const AttentionTask& task, AttentionScratch& scratch)
      : task_(task),
        scratch_(scratch),
        pool_(task.sequence->pool()),
        shared_(pool_.layer(task.layer)),
        loops_(pool_.loops()),
        group_(pool_.quantizer().shape.queries_per_kv_head()),
        head_dim_(pool_.quantizer().shape.head_dim),
        rows_(task.block.tokens * group_),
        stride_((head_dim_ + 15) / 16 * 16),
        rotate_keys_(!pool_.quantizer().recipe.key.post_rope && pool_.angles(task.layer).pairs() > 0),
        by_lanes_(rows_ <= kMostLaneRows) {
    const auto rows = static_cast<std::size_t>(rows_), width = static_cast<std::size_t>(head_dim_);
    query_ = scratch.query.reserve(rows * width);
    turned_ = scratch.turned.reserve(rows * width);
    scores_ = scratch.scores.reserve(rows * kPageTokens);
    of_waiting_ = scratch.scores_of_waiting.reserve(rows * kPageTokens);
    block_ = scratch.block.reserve(width * kPageTokens);
    transposed_ = scratch.transposed.reserve(static_cast<std::size_t>(kPageTokens * stride_));
    for (const Side side : kSides) {
      for (int token = 0; token < task.block.tokens; ++token) {
        settled_[static_cast<int>(side)].push_back(
            task.sequence->settled_for(task.layer, side, task.block.first_position + token));
      }
    }
  }

  std::vector<PartialResult> operator()() {
    const int heads = task_.last_head - task_.first_head;
    const auto rows = static_cast<std::size_t>(rows_);
    PartialResult empty{stride_, std::vector<float>(rows, -std::numeric_limits<float>::infinity()),
                        std::vector<double>(rows), std::vector<float>(rows * static_cast<std::size_t>(stride_))};
    std::vector<PartialResult> results(static_cast<std::size_t>(heads), empty);
    const std::int64_t lane_count = std::int64_t{head_dim_} * rows_ * loops_.lanes;
    if (by_lanes_) std::fill_n(scratch_.lane_sums.reserve(heads * lane_count), heads * lane_count, 0.0f);
    for (std::int64_t first = task_.first_page; first < task_.last_page; first += kOpenPages) {
      const std::int64_t last = std::min(task_.last_page, first + kOpenPages);
      open_pages(first, last);
      for (int head = 0; head < heads; ++head) {
        PartialResult& result = results[static_cast<std::size_t>(head)];
        float* lane_sums = scratch_.lane_sums.data() + head * lane_count;
        gather_queries(task_.first_head + head);
        for (std::int64_t page = first; page < last; ++page) {
          score(page, page - first, task_.first_head + head);
          weigh(page, result, lane_sums);
          add_values(page, page - first, task_.first_head + head, result, lane_sums);
        }
      }
    }
    for (int head = 0; head < heads && by_lanes_; ++head) {
      loops_.sum_lanes(scratch_.lane_sums.data() + head * lane_count, rows_, head_dim_,
                       results[static_cast<std::size_t>(head)].sum.data(), stride_);
    }
    return results;
  }

 private:
  /// How the queries of the block see the tokens of a page: some of them may see a token settled that earlier ones see
  /// exact, before it was coded.
  struct View {
    std::int64_t first = 0;                     ///< token of the page's first slot
    std::int64_t all_settled = 0, settled = 0;  ///< tokens before this are settled for all, for the last of them
    bool reads_codes() const { return first < settled; }
    bool reads_waiting(std::int64_t end) const { return all_settled < std::min(first + kPageTokens, end); }
  };
  View view_of(Side side, std::int64_t page) const {
    const std::vector<std::int64_t>& settled = settled_[static_cast<int>(side)];
    return {page * kPageTokens, settled.front(), settled.back()};
  }
  /// Later tokens are not seen.
  std::int64_t end() const { return task_.block.first_position + task_.block.tokens; }

  void open_pages(std::int64_t first, std::int64_t last) {
    for (const Side side : kSides) {
      std::vector<OpenPage>& open = scratch_.open[static_cast<int>(side)];
      std::vector<std::vector<float>>& waiting = scratch_.waiting[static_cast<int>(side)];
      open.resize(std::max<std::size_t>(open.size(), kOpenPages));
      waiting.resize(open.size());
      for (std::int64_t page = first; page < last; ++page) {
        const View view = view_of(side, page);
        const auto index = static_cast<std::size_t>(page - first);
        if (view.reads_waiting(end())) open_waiting(side, page, waiting[index]);
        if (!view.reads_codes()) continue;
        const int slots = static_cast<int>(std::min<std::int64_t>(end() - page * kPageTokens, kPageTokens));
        shared_.decoder(side).open(
            task_.sequence->page(task_.layer, page), slots, task_.first_head, task_.last_head,
            page == 0 ? task_.sequence->sinks(task_.layer, side) : std::span<const std::uint16_t>(), pool_.overflow(),
            open[index]);
      }
    }
  }

  void open_waiting(Side side, std::int64_t page, std::vector<float>& out) const {
    const PackedSequence::Waiting waiting = task_.sequence->waiting(task_.layer, side);
    const std::int64_t width = shared_.page.key.width(), last = std::min((page + 1) * kPageTokens, end());
    const std::int64_t first = first_waiting(side, page);
    out = shared_.decoder(side).exact_tokens(waiting.exact.subspan(
        static_cast<std::size_t>((first - waiting.first) * width), static_cast<std::size_t>((last - first) * width)));
  }
  std::int64_t first_waiting(Side side, std::int64_t page) const {
    return std::max(page * kPageTokens, settled_[static_cast<int>(side)].front());
  }
  /// As SideDecoder::decode, zeros where nothing waits.
  void decode_waiting(Side side, std::int64_t page, std::int64_t opened, int kv_head) {
    const std::vector<float>& x = scratch_.waiting[static_cast<int>(side)][static_cast<std::size_t>(opened)];
    const std::int64_t slot = first_waiting(side, page) - page * kPageTokens, width = shared_.page.key.width();
    std::fill_n(block_, head_dim_ * kPageTokens, 0.0f);
    for (std::int64_t token = 0; token * width < static_cast<std::int64_t>(x.size()); ++token) {
      const float* from = x.data() + token * width + kv_head * head_dim_;
      for (int channel = 0; channel < head_dim_; ++channel)
        block_[channel * kPageTokens + slot + token] = from[channel];
    }
  }
  /// Slot of a page from which on the query of a row sees tokens exact.
  int waiting_slot(Side side, std::int64_t page, int row) const {
    const std::int64_t settled = settled_[static_cast<int>(side)][static_cast<std::size_t>(row / group_)];
    return static_cast<int>(std::clamp<std::int64_t>(settled - page * kPageTokens, 0, kPageTokens));
  }

  void gather_queries(int kv_head) {
    const int of_head = group_ * head_dim_, of_token = of_head * shared_.page.key.kv_heads;
    for (int token = 0; token < task_.block.tokens; ++token) {
      std::copy_n(task_.block.query + token * of_token + kv_head * of_head, of_head, query_ + token * of_head);
    }
  }

  void score(std::int64_t page, std::int64_t opened, int kv_head) {
    const View view = view_of(Side::Key, page);
    if (view.reads_codes()) {
      shared_.decoder(Side::Key).decode(scratch_.open[0][static_cast<std::size_t>(opened)], kv_head, block_);
      score_block(page, scores_);
    }
    if (!view.reads_waiting(end())) return;
    decode_waiting(Side::Key, page, opened, kv_head);
    score_block(page, view.reads_codes() ? of_waiting_ : scores_);
    for (int row = 0; row < rows_ && view.reads_codes(); ++row) {
      const int slot = waiting_slot(Side::Key, page, row);
      std::copy_n(of_waiting_ + row * kPageTokens + slot, kPageTokens - slot, scores_ + row * kPageTokens + slot);
    }
  }

  void score_block(std::int64_t page, float* scores) {
    const float* query = query_;
    if (rotate_keys_) {
      const RopeAngles& angles = pool_.angles(task_.layer);
      loops_.rotate_rows(block_, angles.pairs(), angles.slot_cos(), angles.slot_sin());
      const std::int64_t distance = task_.block.first_position / kPageTokens - page;
      if (distance > 0) {
        loops_.rotate_vectors(query_, rows_, head_dim_, angles.pairs(), angles.cos_of_pages(distance),
                              angles.sin_of_pages(distance), turned_);
        query = turned_;
      }
    }
    loops_.multiply(query, head_dim_, rows_, head_dim_, block_, kPageTokens, kPageTokens, scores, kPageTokens, false);
  }

  /// Scores become softmax weights; what was summed before is brought to the same scale.
  void weigh(std::int64_t page, PartialResult& result, float* lane_sums) {
    const VectorMath& math = vector_math();
    for (int row = 0; row < rows_; ++row) {
      const std::int64_t position = task_.block.first_position + row / group_;
      const std::int64_t seen = std::min<std::int64_t>(position + 1 - page * kPageTokens, kPageTokens);
      const std::int64_t unseen = std::clamp<std::int64_t>(
          pool_.quantizer().rope.first_seen(task_.layer, position) - page * kPageTokens, 0, kPageTokens);
      float* scores = scores_ + row * kPageTokens;
      std::fill(scores, scores + unseen, 0.0f);
      std::fill(scores + seen, scores + kPageTokens, 0.0f);
      if (unseen >= seen) continue;  // the whole page stands before the query's window
      const auto at = static_cast<std::size_t>(row);
      if (const float largest = math.max(scores + unseen, seen - unseen); largest > result.largest[at]) {
        if (page != task_.first_page) {
          const float factor = std::exp(result.largest[at] - largest);
          result.total[at] *= factor;
          if (by_lanes_) {
            scale_lanes(lane_sums, row, factor);
          } else {
            math.scale(result.sum.data() + row * stride_, stride_, factor);
          }
        }
        result.largest[at] = largest;
      }
      result.total[at] += math.exp_in_place(scores + unseen, seen - unseen, result.largest[at]);
    }
  }

  void scale_lanes(float* lane_sums, int row, float factor) const {
    for (int channel = 0; channel < head_dim_; ++channel) {
      float* lanes = lane_sums + (channel * rows_ + row) * loops_.lanes;
      for (int lane = 0; lane < loops_.lanes; ++lane) lanes[lane] *= factor;
    }
  }

  void add_values(std::int64_t page, std::int64_t opened, int kv_head, PartialResult& result, float* lane_sums) {
    const View view = view_of(Side::Value, page);
    const bool both = view.reads_codes() && view.reads_waiting(end());
    if (both) {
      std::copy_n(scores_, rows_ * kPageTokens, of_waiting_);
      for (int row = 0; row < rows_; ++row) {
        const int slot = waiting_slot(Side::Value, page, row);
        std::fill_n(of_waiting_ + row * kPageTokens, slot, 0.0f);
        std::fill_n(scores_ + row * kPageTokens + slot, kPageTokens - slot, 0.0f);
      }
    }
    if (view.reads_codes()) {
      shared_.decoder(Side::Value).decode(scratch_.open[1][static_cast<std::size_t>(opened)], kv_head, block_);
      add_block(scores_, result, lane_sums);
    }
    if (!view.reads_waiting(end())) return;
    decode_waiting(Side::Value, page, opened, kv_head);
    add_block(both ? of_waiting_ : scores_, result, lane_sums);
  }

  void add_block(const float* weights, PartialResult& result, float* lane_sums) {
    if (by_lanes_) {
      loops_.add_weighted(weights, rows_, block_, head_dim_, lane_sums);
    } else {
      loops_.transpose(block_, head_dim_, transposed_, stride_);
      loops_.multiply(weights, kPageTokens, rows_, kPageTokens, transposed_, stride_, stride_, result.sum.data(),
                      stride_, true);
    }
  }

  const AttentionTask& task_;
  AttentionScratch& scratch_;
  PackedPool& pool_;
  const PackedPool::Layer& shared_;
  const PageLoops& loops_;
  int group_, head_dim_, rows_, stride_;
  bool rotate_keys_, by_lanes_;
  std::vector<std::int64_t> settled_[2];  ///< by Side and query of the block: tokens before this are settled for it
  float *query_, *turned_, *scores_, *of_waiting_, *block_, *transposed_;
};

}  // namespace

void AttentionTask::run(AttentionScratch& scratch) { results = Run(*this, scratch)(); }

}  // namespace kvq
