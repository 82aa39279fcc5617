#include <kvq/cache/layer_tiers.h>

#include <algorithm>
#include <span>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <kvq/cache/cache_checks.h>
#include <kvq/cache/grown_tokens.h>
#include <kvq/cache/internal/attended_columns.h>
#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/model/linear.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/tier_coder.h>
#include <kvq/quant/tier_list.h>

namespace kvq {

struct LayerTiers::State {
  /// Keys or values.
  struct SideTokens {
    GrownTokens held;                    ///< fp32, as attention takes them
    std::vector<EncodedTokens> encoded;  ///< one token each; empty ones for sinks
    std::vector<std::uint32_t> outliers;
  };
  /// Kv heads that choose together.
  struct List {
    int first_head;
    TierList tokens;
    std::vector<float> weights;  ///< of one query
  };

  State(const Quantizer& of, int layer_number, int thread_count, RopeTable& table)
      : quantizer(of), layer(layer_number), threads(thread_count), rope(table), shape(of.shape) {
    for (const Side side : kSides) coders.emplace_back(of.layers[static_cast<std::size_t>(layer)].side(side));
    start();
  }

  int list_count() const { return tier_lists(quantizer); }
  int list_heads() const { return shape.kv_heads / list_count(); }
  int group() const { return shape.queries_per_kv_head(); }

  void start() {
    for (SideTokens& side : sides) side = {};
    lists.clear();
    window_tiers.clear();
    for (int list = 0; list < list_count(); ++list) {
      lists.push_back({list * list_heads(), TierList(quantizer.recipe.tiers, quantizer.recipe.sinks), {}});
    }
    columns.assign(static_cast<std::size_t>(shape.kv_heads), AttendedColumns(group(), shape.head_dim));
    length = 0;
  }

  at::Tensor as_attended(const at::Tensor& x, Side side, std::int64_t position, bool bf16) const {
    const bool rotate = side == Side::Key && !quantizer.recipe.key.post_rope;
    return attention_operand(rotate ? rope.apply(x, position) : x, bf16).to(at::kFloat).contiguous();
  }

  /// Encodes new tokens, each head's part at the tier that `tier_of(list, token)` says, and holds what that stands for.
  template <typename TierOf>
  void encode(const at::Tensor& x, Side which, std::int64_t first, bool bf16, TierOf tier_of) {
    SideTokens& side = sides[static_cast<std::size_t>(which)];
    const TierCoder& coder = coders[static_cast<std::size_t>(which)];
    const std::int64_t count = x.size(0);
    const auto width = static_cast<std::size_t>(shape.width());
    const auto lists_of_token = static_cast<std::size_t>(list_count());
    side.encoded.resize(static_cast<std::size_t>(first + count));
    side.outliers.resize(static_cast<std::size_t>(first + count) * lists_of_token);
    const at::Tensor decoded = at::empty(x.sizes(), x.options());
    parallel_for(count, threads, [&](std::int64_t index) {
      const auto token = static_cast<std::size_t>(first + index);
      const std::span<const float> row(x.const_data_ptr<float>() + static_cast<std::size_t>(index) * width, width);
      const std::span<float> out(decoded.mutable_data_ptr<float>() + static_cast<std::size_t>(index) * width, width);
      try {
        if (first + index < quantizer.recipe.sinks) {
          std::copy(row.begin(), row.end(), out.begin());
          return coder.round_exact(out);
        }
        EncodedTokens& encoded = side.encoded[token];
        for (int list = 0; list < list_count(); ++list) {
          const int tier = tier_of(list, first + index), head = list * list_heads();
          EncodedTokens part;
          coder.encode(row, tier, part);
          if (list == 0) encoded = part;
          const auto begin = static_cast<std::ptrdiff_t>(head * shape.head_dim),
                     end = begin + static_cast<std::ptrdiff_t>(list_heads() * shape.head_dim);
          std::copy(part.codes.begin() + begin, part.codes.begin() + end, encoded.codes.begin() + begin);
          coder.decode(encoded, head, list_heads(), tier,
                       out.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)));
        }
        for (const std::uint16_t channel : encoded.outlier_channel)
          ++side.outliers[token * lists_of_token + channel * lists_of_token / width];
      } catch (const ExactOverflow& overflow) {
        fail_overflow(layer, which, first + index, shape.head_dim, overflow);
      }
    });
    side.held.append(as_attended(decoded, which, first, bf16));
  }

  /// A token goes to another tier: from its codes, and nothing else.
  void recode(List& list, const TierList::Move& move, bool bf16) {
    for (const Side which : kSides) {
      SideTokens& side = sides[static_cast<std::size_t>(which)];
      const TierCoder& coder = coders[static_cast<std::size_t>(which)];
      EncodedTokens& token = side.encoded[static_cast<std::size_t>(move.position)];
      const at::Tensor decoded = at::empty({1, list_heads(), shape.head_dim}, at::TensorOptions().dtype(at::kFloat));
      coder.recode(token, list.first_head, list_heads(), move.from, move.to);
      coder.decode(token, list.first_head, list_heads(), move.to,
                   {decoded.mutable_data_ptr<float>(), static_cast<std::size_t>(decoded.numel())});
      const at::Tensor attended = as_attended(decoded, which, move.position, bf16);
      // By hand: libtorch forbids threads to change tensors that their parent made in inference mode.
      std::copy_n(attended.const_data_ptr<float>(), attended.numel(), row(which, move.position, list.first_head));
    }
    for (int head = list.first_head; head < list.first_head + list_heads(); ++head)
      columns[static_cast<std::size_t>(head)].replace(move.position, row(Side::Key, move.position, head),
                                                      row(Side::Value, move.position, head));
  }

  float* row(Side which, std::int64_t token, int head) const {
    return sides[static_cast<std::size_t>(which)].held.store.mutable_data_ptr<float>() +
           (token * shape.kv_heads + head) * shape.head_dim;
  }

  /// The token at `position` comes to one list, then its query is answered. `query`, `result`: `[heads, head_dim]`.
  void answer(List& list, std::int64_t position, const float* query, float* result, bool bf16) {
    const int last_head = list.first_head + list_heads();
    for (int head = list.first_head; head < last_head; ++head)
      columns[static_cast<std::size_t>(head)].append(row(Side::Key, position, head), row(Side::Value, position, head));
    for (const TierList::Move& move : list.tokens.append()) {
      if (move.to < list.tokens.tiers()) {
        recode(list, move, bf16);
        continue;
      }
      for (int head = list.first_head; head < last_head; ++head)
        columns[static_cast<std::size_t>(head)].hide(move.position);
    }
    list.weights.assign(static_cast<std::size_t>(position) + 1, 0.0f);
    for (int head = list.first_head; head < last_head; ++head) {
      const std::int64_t at = std::int64_t{head} * group() * shape.head_dim;
      add_weights(columns[static_cast<std::size_t>(head)], query + at, list.weights);
      columns[static_cast<std::size_t>(head)].weighted_sum(result + at);
    }
    list.tokens.add(list.weights);
  }

  void add_weights(AttendedColumns& head, const float* query, std::vector<float>& sum) const {
    const float* weights = head.weigh(query);
    for (int query_head = 0; query_head < group(); ++query_head, weights += head.stride()) {
      for (std::size_t token = 0; token < sum.size(); ++token) sum[token] += weights[token];
    }
  }

  at::Tensor attend_past(const TierInput& input, const at::Tensor& query) {
    const std::int64_t count = query.size(0), first = input.first_position, width = shape.heads * shape.head_dim;
    for (const Side side : kSides)
      encode(side == Side::Key ? input.key : input.value, side, first, input.bf16, [](int, std::int64_t) { return 0; });
    const at::Tensor result = at::empty(query.sizes(), query.options());
    parallel_for(list_count(), threads, [&](std::int64_t list) {
      for (std::int64_t token = 0; token < count; ++token)
        answer(lists[static_cast<std::size_t>(list)], first + token, query.const_data_ptr<float>() + token * width,
               result.mutable_data_ptr<float>() + token * width, input.bf16);
    });
    return result;
  }

  /// What every token receives of all queries over the keys as they are, `[tokens]` for each list.
  std::vector<std::vector<float>> window_weights(const TierInput& input, const at::Tensor& query) {
    const std::int64_t count = query.size(0), width = shape.heads * shape.head_dim;
    const at::Tensor key = as_attended(input.key, Side::Key, 0, input.bf16);
    std::vector<std::vector<float>> of_head(static_cast<std::size_t>(shape.kv_heads));
    parallel_for(shape.kv_heads, threads, [&](std::int64_t head) {
      AttendedColumns exact(group(), shape.head_dim);
      std::vector<float>& sum = of_head[static_cast<std::size_t>(head)];
      for (std::int64_t token = 0; token < count; ++token) {
        const float* own = key.const_data_ptr<float>() + (token * shape.kv_heads + head) * shape.head_dim;
        exact.append(own, own);
        sum.push_back(0.0f);
        add_weights(exact, query.const_data_ptr<float>() + token * width + head * group() * shape.head_dim, sum);
      }
    });
    std::vector<std::vector<float>> of_list(static_cast<std::size_t>(list_count()),
                                            std::vector<float>(static_cast<std::size_t>(count), 0.0f));
    for (int head = 0; head < shape.kv_heads; ++head) {
      std::vector<float>& sum = of_list[static_cast<std::size_t>(head / list_heads())];
      for (std::size_t token = 0; token < sum.size(); ++token)
        sum[token] += of_head[static_cast<std::size_t>(head)][token];
    }
    return of_list;
  }

  at::Tensor attend_window(const TierInput& input, const at::Tensor& query) {
    if (input.first_position != 0) {
      fail(ErrorKind::Usage,
           fmt::format("by=window takes the weights of the whole window, but token {} comes in a later call: such a "
                       "recipe cannot continue a text",
                       input.first_position));
    }
    for (const std::vector<float>& weights : window_weights(input, query))
      window_tiers.push_back(tiers_by_weight(quantizer.recipe.tiers, quantizer.recipe.sinks, weights));
    for (const Side side : kSides) {
      encode(side == Side::Key ? input.key : input.value, side, 0, input.bf16, [&](int list, std::int64_t token) {
        return window_tiers[static_cast<std::size_t>(list)][static_cast<std::size_t>(token)];
      });
    }
    return causal_attention(query, sides[0].held.all(), sides[1].held.all(), 0);
  }

  const Quantizer& quantizer;
  int layer, threads;
  RopeTable& rope;
  KvShape shape;
  std::vector<TierCoder> coders;  ///< by Side
  SideTokens sides[2];            ///< by Side
  std::vector<List> lists;
  std::vector<std::vector<int>> window_tiers;  ///< by=window: tier of each token, for each list
  std::vector<AttendedColumns> columns;        ///< by kv head
  std::int64_t length = 0;
};

LayerTiers::LayerTiers(const Quantizer& quantizer, int layer, int threads, RopeTable& rope)
    : state_(std::make_unique<State>(quantizer, layer, threads, rope)) {}

LayerTiers::~LayerTiers() = default;

at::Tensor LayerTiers::attend(const TierInput& input) {
  KVQ_ASSERT(input.first_position == state_->length);
  const at::Tensor query = input.query.to(at::kFloat).contiguous();
  const at::Tensor result =
      state_->quantizer.recipe.tiers.oracle() ? state_->attend_window(input, query) : state_->attend_past(input, query);
  state_->length += query.size(0);
  return result;
}

void LayerTiers::reset() { state_->start(); }

TierTokens LayerTiers::tiers() const {
  TierTokens tokens(static_cast<std::size_t>(state_->coders.front().tiers()),
                    KeptTokens(static_cast<std::size_t>(state_->list_count())));
  for (std::size_t list = 0; list < state_->lists.size(); ++list) {
    if (state_->quantizer.recipe.tiers.oracle()) {
      if (state_->window_tiers.empty()) continue;
      const std::vector<int>& of_list = state_->window_tiers[list];
      for (std::size_t token = 0; token < of_list.size(); ++token) {
        if (of_list[token] != TierList::kExact)
          tokens[static_cast<std::size_t>(of_list[token])][list].push_back(static_cast<std::int64_t>(token));
      }
      continue;
    }
    const std::vector<std::vector<std::int64_t>> positions = state_->lists[list].tokens.positions();
    for (std::size_t tier = 0; tier < positions.size(); ++tier) tokens[tier][list] = positions[tier];
  }
  return tokens;
}

const std::vector<std::uint32_t>& LayerTiers::outliers(Side side) const {
  return state_->sides[static_cast<std::size_t>(side)].outliers;
}

at::Tensor LayerTiers::held(Side side) const { return state_->sides[static_cast<std::size_t>(side)].held.all(); }

}  // namespace kvq
