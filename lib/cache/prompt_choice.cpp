// snapkv and pyramidkv: one choice at the end of the prompt, for each kv head, by what the last queries attend to.

#include <algorithm>
#include <cmath>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <kvq/cache/aligned_floats.h>
#include <kvq/cache/grown_tokens.h>
#include <kvq/cache/internal/eviction_rules.h>
#include <kvq/cache/page_loops.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/model/vector_math.h>
#include <kvq/quant/eviction_words.h>

namespace kvq {

namespace {

constexpr std::int64_t kColumns = 64;  ///< keys that are turned at once

class PromptChoice final : public LayerEviction {
 public:
  PromptChoice(const EvictionRecipe& recipe, const KvShape& shape, int layer, int threads,
               const std::optional<std::int64_t>& prompt)
      : recipe_(recipe), shape_(shape), layer_(layer), threads_(threads), prompt_(prompt) {}

  at::Tensor attend(const EvictionInput& input) override {
    const std::int64_t tokens = input.query.size(0), first = input.first_position;
    if (prompt_.value_or(0) < 1) {
      fail(ErrorKind::Usage, fmt::format("evict={} chooses at the end of the prompt, but nobody has said where that is",
                                         word_of(kEvictionWords, recipe_.rule)));
    }
    const std::int64_t of_prompt = std::clamp<std::int64_t>(*prompt_ - first, 0, tokens);
    std::vector<at::Tensor> results;
    if (of_prompt > 0) {
      const at::Tensor query = input.query.narrow(0, 0, of_prompt);
      const std::int64_t length = first + of_prompt;
      results.push_back(
          causal_attention(query, input.keys.narrow(0, 0, length), input.values.narrow(0, 0, length), first));
      observe(query, first);
      length_ = length;
      if (length == *prompt_) choose(input.keys.narrow(0, 0, length), input.values.narrow(0, 0, length));
    }
    if (of_prompt < tokens) {
      const std::int64_t begin = first + of_prompt, count = tokens - of_prompt;
      const auto seen_before = keys_.length;
      keys_.append(input.keys.narrow(0, begin, count));
      values_.append(input.values.narrow(0, begin, count));
      length_ = begin + count;
      results.push_back(
          causal_attention(input.query.narrow(0, of_prompt, count), keys_.all(), values_.all(), seen_before));
    }
    return at::cat(results, 0);
  }

  KeptTokens kept() const override {
    KeptTokens lists = chosen_;
    lists.resize(static_cast<std::size_t>(shape_.kv_heads));
    const std::int64_t whole_from = chosen_.empty() ? 0 : *prompt_;
    for (std::vector<std::int64_t>& list : lists) {
      for (std::int64_t token = whole_from; token < length_; ++token) list.push_back(token);
    }
    return lists;
  }

  void reset() override {
    observed_ = at::Tensor();
    chosen_.clear();
    keys_ = values_ = {};
    length_ = 0;
  }

 private:
  std::int64_t observed_count() const { return std::min<std::int64_t>(recipe_.observe, *prompt_); }

  /// Keeps those of the queries at `first` … that are among the last of the prompt.
  void observe(const at::Tensor& query, std::int64_t first) {
    const std::int64_t from = std::max(*prompt_ - observed_count() - first, std::int64_t{0});
    if (from >= query.size(0)) return;
    const at::Tensor more = query.narrow(0, from, query.size(0) - from).to(at::kFloat).contiguous();
    observed_ = observed_.defined() ? at::cat({observed_, more}, 0) : more.clone();
  }

  void choose(const at::Tensor& keys, const at::Tensor& values) {
    const std::int64_t budget = prompt_budgets(recipe_, shape_.layers, *prompt_)[static_cast<std::size_t>(layer_)];
    chosen_.resize(static_cast<std::size_t>(shape_.kv_heads));
    const at::Tensor k = keys.to(at::kFloat).contiguous();
    parallel_for(shape_.kv_heads, threads_, [&](std::int64_t head) {
      chosen_[static_cast<std::size_t>(head)] = chosen_of(k.const_data_ptr<float>(), static_cast<int>(head), budget);
    });
    observed_ = at::Tensor();
    for (const auto& [from, to] : {std::pair{&keys, &keys_}, std::pair{&values, &values_}}) {
      const at::Tensor kept = at::empty({budget, from->size(1), from->size(2)}, from->options());
      for (std::int64_t head = 0; head < shape_.kv_heads; ++head) {
        const at::Tensor source = from->select(1, head), target = kept.select(1, head);
        const std::vector<std::int64_t>& list = chosen_[static_cast<std::size_t>(head)];
        for (std::size_t index = 0; index < list.size();) {  // whole runs of neighbours
          std::size_t last = index + 1;
          while (last < list.size() && list[last] == list[last - 1] + 1) ++last;
          const auto count = static_cast<std::int64_t>(last - index);
          target.narrow(0, static_cast<std::int64_t>(index), count).copy_(source.narrow(0, list[index], count));
          index = last;
        }
      }
      to->append(kept);
    }
  }

  /// Positions that a kv head keeps, ascending: the observed tokens, and the best of those before.
  std::vector<std::int64_t> chosen_of(const float* keys, int kv_head, std::int64_t budget) const {
    const std::int64_t observed = observed_count(), prefix = *prompt_ - observed;
    std::vector<std::int64_t> list;
    if (budget < *prompt_) {
      const std::vector<float> votes = votes_of(keys, kv_head);
      list = largest(pooled(std::span(votes).first(static_cast<std::size_t>(prefix)), recipe_.pooling, recipe_.kernel),
                     budget - observed);
    } else {
      for (std::int64_t token = 0; token < prefix; ++token) list.push_back(token);
    }
    for (std::int64_t token = prefix; token < *prompt_; ++token) list.push_back(token);
    return list;
  }

  /// Softmax weights that the prompt's tokens get from all observed queries of a kv head, in a fixed order of sums.
  std::vector<float> votes_of(const float* keys, int kv_head) const {
    const int dim = shape_.head_dim, group = shape_.queries_per_kv_head();
    const std::int64_t observed = observed_count(), rows = observed * group, length = *prompt_;
    const std::int64_t stride = (length + kColumns - 1) / kColumns * kColumns;
    const PageLoops& loops = page_loops(best_simd_level());
    const VectorMath& math = vector_math();
    AlignedFloats query_memory, turned_memory, score_memory;
    float* query = query_memory.reserve(static_cast<std::size_t>(rows * dim));
    for (std::int64_t token = 0; token < observed; ++token) {
      const float* from = observed_.const_data_ptr<float>() + (token * shape_.heads + kv_head * group) * dim;
      std::copy_n(from, group * dim, query + token * group * dim);
    }
    math.scale(query, rows * dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))));
    float* turned = turned_memory.reserve(static_cast<std::size_t>(dim * kColumns));
    float* scores = score_memory.reserve(static_cast<std::size_t>(rows * stride));
    for (std::int64_t first = 0; first < length; first += kColumns) {
      const std::int64_t count = std::min(kColumns, length - first);
      for (std::int64_t column = 0; column < count; ++column) {
        const float* key = keys + ((first + column) * shape_.kv_heads + kv_head) * dim;
        for (int channel = 0; channel < dim; ++channel) turned[channel * kColumns + column] = key[channel];
      }
      loops.multiply(query, dim, static_cast<int>(rows), dim, turned, kColumns, kColumns, scores + first,
                     static_cast<int>(stride), false);
    }
    std::vector<float> votes(static_cast<std::size_t>(length));
    for (std::int64_t row = 0; row < rows; ++row) {
      float* line = scores + row * stride;
      const std::int64_t seen = length - observed + row / group + 1;
      const double total = math.exp_in_place(line, seen, math.max(line, seen));
      math.scale(line, seen, static_cast<float>(1.0 / total));
      for (std::int64_t token = 0; token < seen; ++token) votes[static_cast<std::size_t>(token)] += line[token];
    }
    return votes;
  }

  EvictionRecipe recipe_;
  KvShape shape_;
  int layer_, threads_;
  const std::optional<std::int64_t>& prompt_;
  at::Tensor observed_;        ///< `[up to observe, heads, head_dim]` fp32
  KeptTokens chosen_;          ///< empty before the choice
  GrownTokens keys_, values_;  ///< chosen tokens, then all that came since
  std::int64_t length_ = 0;
};

}  // namespace

std::unique_ptr<LayerEviction> make_prompt_choice(const EvictionRecipe& recipe, const KvShape& shape, int layer,
                                                  int threads, const std::optional<std::int64_t>& prompt) {
  return std::make_unique<PromptChoice>(recipe, shape, layer, threads, prompt);
}

}  // namespace kvq
