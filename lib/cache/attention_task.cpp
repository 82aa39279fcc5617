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
        rotate_keys_(!pool_.quantizer().recipe.key.post_rope && pool_.angles().pairs() > 0),
        by_lanes_(rows_ <= kMostLaneRows) {
    const auto rows = static_cast<std::size_t>(rows_), width = static_cast<std::size_t>(head_dim_);
    query_ = scratch.query.reserve(rows * width);
    turned_ = scratch.turned.reserve(rows * width);
    scores_ = scratch.scores.reserve(rows * kPageTokens);
    block_ = scratch.block.reserve(width * kPageTokens);
    transposed_ = scratch.transposed.reserve(static_cast<std::size_t>(kPageTokens * stride_));
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
          add_values(page - first, task_.first_head + head, result, lane_sums);
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
  void open_pages(std::int64_t first, std::int64_t last) {
    const std::int64_t end = task_.block.first_position + task_.block.tokens;  // later tokens are not seen
    for (const Side side : kSides) {
      std::vector<OpenPage>& open = scratch_.open[static_cast<int>(side)];
      open.resize(std::max<std::size_t>(open.size(), kOpenPages));
      for (std::int64_t page = first; page < last; ++page) {
        const int slots = static_cast<int>(std::min<std::int64_t>(end - page * kPageTokens, kPageTokens));
        shared_.decoder(side).open(
            task_.sequence->page(task_.layer, page), slots, task_.first_head, task_.last_head,
            page == 0 ? task_.sequence->sinks(task_.layer, side) : std::span<const std::uint16_t>(), pool_.overflow(),
            open[static_cast<std::size_t>(page - first)]);
      }
    }
  }

  void gather_queries(int kv_head) {
    const int of_head = group_ * head_dim_, of_token = of_head * shared_.page.key.kv_heads;
    for (int token = 0; token < task_.block.tokens; ++token) {
      std::copy_n(task_.block.query + token * of_token + kv_head * of_head, of_head, query_ + token * of_head);
    }
  }

  void score(std::int64_t page, std::int64_t opened, int kv_head) {
    shared_.decoder(Side::Key).decode(scratch_.open[0][static_cast<std::size_t>(opened)], kv_head, block_);
    const float* query = query_;
    if (rotate_keys_) {
      const RopeAngles& angles = pool_.angles();
      loops_.rotate_rows(block_, angles.pairs(), angles.slot_cos(), angles.slot_sin());
      const std::int64_t distance = task_.block.first_position / kPageTokens - page;
      if (distance > 0) {
        loops_.rotate_vectors(query_, rows_, head_dim_, angles.pairs(), angles.cos_of_pages(distance),
                              angles.sin_of_pages(distance), turned_);
        query = turned_;
      }
    }
    loops_.multiply(query, head_dim_, rows_, head_dim_, block_, kPageTokens, kPageTokens, scores_, kPageTokens, false);
  }

  /// Scores become softmax weights; what was summed before is brought to the same scale.
  void weigh(std::int64_t page, PartialResult& result, float* lane_sums) {
    const VectorMath& math = vector_math();
    for (int row = 0; row < rows_; ++row) {
      const std::int64_t position = task_.block.first_position + row / group_;
      const std::int64_t seen = std::min<std::int64_t>(position + 1 - page * kPageTokens, kPageTokens);
      float* scores = scores_ + row * kPageTokens;
      const auto at = static_cast<std::size_t>(row);
      if (const float largest = math.max(scores, seen); largest > result.largest[at]) {
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
      result.total[at] += math.exp_in_place(scores, seen, result.largest[at]);
      std::fill(scores + seen, scores + kPageTokens, 0.0f);
    }
  }

  void scale_lanes(float* lane_sums, int row, float factor) const {
    for (int channel = 0; channel < head_dim_; ++channel) {
      float* lanes = lane_sums + (channel * rows_ + row) * loops_.lanes;
      for (int lane = 0; lane < loops_.lanes; ++lane) lanes[lane] *= factor;
    }
  }

  void add_values(std::int64_t opened, int kv_head, PartialResult& result, float* lane_sums) {
    shared_.decoder(Side::Value).decode(scratch_.open[1][static_cast<std::size_t>(opened)], kv_head, block_);
    if (by_lanes_) {
      loops_.add_weighted(scores_, rows_, block_, head_dim_, lane_sums);
    } else {
      loops_.transpose(block_, head_dim_, transposed_, stride_);
      loops_.multiply(scores_, kPageTokens, rows_, kPageTokens, transposed_, stride_, stride_, result.sum.data(),
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
  float *query_, *turned_, *scores_, *block_, *transposed_;
};

}  // namespace

void AttentionTask::run(AttentionScratch& scratch) { results = Run(*this, scratch)(); }

}  // namespace kvq
