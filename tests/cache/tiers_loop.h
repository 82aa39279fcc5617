#pragma once
// A decode loop over caches with tiers, in double precision: lists of tokens, their codes found by looking at every
// level, tiers decided anew at every token from the weights of the queries before.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "cache/random_attention.h"
#include "support/catch.h"

#include <kvq/cache/kv_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/rng.h>

namespace kvq::test {

inline constexpr int kLayers = 2, kHeads = 6, kKvHeads = 2, kGroup = 3, kDim = 16, kWidth = kKvHeads * kDim;
inline constexpr std::int64_t kTokens = 150;

/// Levels that are neither even nor symmetric.
inline Codebook uneven(int bits, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<float> levels(std::size_t{1} << bits);
  for (float& level : levels) level = static_cast<float>(2.0 * rng.uniform() - 1.0);
  std::sort(levels.begin(), levels.end());
  return {levels, levels};
}

inline std::shared_ptr<Quantizer> tiered_quantizer(const std::string& recipe) {
  auto quantizer = std::make_shared<Quantizer>();
  quantizer->recipe = parse_recipe(recipe);
  quantizer->shape = {kLayers, kHeads, kKvHeads, kDim};
  quantizer->rope.rotary_dim = kDim;
  std::uint64_t seed = 1000;
  for (int layer = 0; layer < kLayers; ++layer) {
    LayerQuantizer parts;
    for (const Side which : kSides) {
      SideQuantizer& side = parts.side(which);
      side.recipe = quantizer->recipe.side(which);
      side.kv_heads = kKvHeads, side.head_dim = kDim;
      const int books = side.recipe.share == Share::Head ? kKvHeads : 1;
      for (int book = 0; book < books; ++book) side.codebooks.push_back(uneven(side.recipe.bits, seed++));
      for (const int bits : lower_tier_bits(quantizer->recipe.tiers)) {
        side.lower_tiers.push_back({bits, {}});
        for (int book = 0; book < books; ++book) side.lower_tiers.back().codebooks.push_back(uneven(bits, seed++));
      }
      if (side.recipe.range == RangeKind::Static) {
        side.lower.assign(kWidth, -0.96f);
        side.upper.assign(kWidth, 0.98f);
        side.outlier_rate = 0.03;
      }
    }
    quantizer->layers.push_back(parts);
  }
  return quantizer;
}

inline std::vector<AttentionInput> random_text(std::uint64_t seed) {
  Rng rng(seed);
  std::vector<AttentionInput> layers;
  for (int layer = 0; layer < kLayers; ++layer)
    layers.push_back(random_attention(layer, kTokens, {kLayers, kHeads, kKvHeads, kDim}, 4.0f, rng));
  return layers;
}

inline at::Tensor run_in_pieces(AttentionBackend& cache, const AttentionInput& text, std::int64_t size) {
  std::vector<at::Tensor> results;
  for (std::int64_t first = 0; first < kTokens; first += size) {
    const std::int64_t count = std::min(size, kTokens - first);
    const auto part = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
    results.push_back(cache.attend({text.layer, first, part(text.query), part(text.key), part(text.value)}));
  }
  return at::cat(results, 0);
}

inline double difference(const at::Tensor& a, const at::Tensor& b) {
  REQUIRE(a.sizes() == b.sizes());
  double most = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    most = std::max<double>(most, std::abs(a.const_data_ptr<float>()[i] - b.const_data_ptr<float>()[i]));
  return most;
}

using Row = std::array<double, kDim>;

/// What a cache that has only codes knows of one side of a token.
struct Stored {
  std::array<int, kWidth> code{};
  std::array<bool, kWidth> exact{};
  std::array<double, kWidth> value{};  ///< where exact
  std::array<double, kWidth> zero{}, scale{};
};

inline double rounded(double x) { return half_to_float(float_to_half(static_cast<float>(x))); }

inline int nearest(const std::vector<float>& levels, double x) {
  int best = 0;
  for (int code = 1; code < static_cast<int>(levels.size()); ++code) {
    if (std::abs(x - levels[code]) < std::abs(x - levels[best])) best = code;
  }
  return best;
}

struct PlainSide {
  const SideQuantizer& side;

  const std::vector<float>& levels(int tier, int channel) const {
    const auto& books = tier == 0 ? side.codebooks : side.lower_tiers[static_cast<std::size_t>(tier) - 1].codebooks;
    return books[books.size() == 1 ? 0 : static_cast<std::size_t>(channel / kDim)].centroids;
  }
  Stored store(const float* x, const std::array<int, kKvHeads>& tier) const {
    Stored token;
    double low = 1e9, high = -1e9;
    if (side.recipe.range == RangeKind::Static) {
      for (int c = 0; c < kWidth; ++c) {
        low = side.lower[c], high = side.upper[c];
        token.zero[c] = 0.5 * low + 0.5 * high, token.scale[c] = 0.5 * high - 0.5 * low;
        token.exact[c] = side.recipe.outliers > 0 && (x[c] < low || x[c] > high);
      }
    } else {
      std::vector<std::pair<double, int>> order;
      for (int c = 0; c < kWidth; ++c) order.emplace_back(x[c], c);
      std::sort(order.begin(), order.end());
      const auto k =
          side.recipe.outliers > 0
              ? std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(side.recipe.outliers * kWidth / 2)))
              : 0;
      for (std::size_t i = 0; i < k; ++i)
        token.exact[order[i].second] = token.exact[order[kWidth - 1 - i].second] = true;
      low = order[k].first, high = order[kWidth - 1 - k].first;
      const double zero = rounded(0.5 * low + 0.5 * high), scale = rounded(std::max(high - zero, zero - low));
      token.zero.fill(zero), token.scale.fill(scale);
    }
    for (int c = 0; c < kWidth; ++c) {
      if (token.exact[c]) token.value[c] = rounded(x[c]);
      token.code[c] = nearest(levels(tier[c / kDim], c), (x[c] - token.zero[c]) / token.scale[c]);
    }
    return token;
  }
  void recode(Stored& token, int first_head, int heads, int from, int to) const {
    for (int c = first_head * kDim; c < (first_head + heads) * kDim; ++c)
      token.code[c] = nearest(levels(to, c), levels(from, c)[static_cast<std::size_t>(token.code[c])]);
  }
  Row decoded(const Stored& token, int head, int tier) const {
    Row row;
    for (int i = 0; i < kDim; ++i) {
      const int c = head * kDim + i;
      row[i] = token.exact[c]
                   ? token.value[c]
                   : token.zero[c] + token.scale[c] * levels(tier, c)[static_cast<std::size_t>(token.code[c])];
    }
    return row;
  }
};

inline Row turned(const Row& row, std::int64_t position) {
  Row out;
  for (int pair = 0; pair < kDim / 2; ++pair) {
    const double angle = static_cast<double>(position) * std::pow(10000.0, -2.0 * pair / kDim);
    out[pair] = row[pair] * std::cos(angle) - row[pair + kDim / 2] * std::sin(angle);
    out[pair + kDim / 2] = row[pair + kDim / 2] * std::cos(angle) + row[pair] * std::sin(angle);
  }
  return out;
}

/// Softmax weights over `keys`.
inline std::vector<double> weights_of(const float* query, std::int64_t position, const std::vector<Row>& keys) {
  Row q;
  std::copy_n(query, kDim, q.begin());
  q = turned(q, position);
  std::vector<double> scores;
  for (const Row& key : keys) {
    double sum = 0;
    for (int c = 0; c < kDim; ++c) sum += q[c] * key[c];
    scores.push_back(sum / std::sqrt(double(kDim)));
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& score : scores) total += score = std::exp(score - most);
  for (double& score : scores) score /= total;
  return scores;
}

struct Outcome {
  at::Tensor result = at::empty({kTokens, kHeads, kDim}, at::TensorOptions().dtype(at::kFloat));
  at::Tensor held[2] = {at::empty({kTokens, kKvHeads, kDim}, at::TensorOptions().dtype(at::kFloat)),
                        at::empty({kTokens, kKvHeads, kDim}, at::TensorOptions().dtype(at::kFloat))};
  TierTokens tiers;
  int falls = 0, returns = 0, drops = 0;
};

/// Everything that the loop knows of the recipe.
struct Rule {
  std::vector<double> shares;  ///< cumulative, the last is what is kept
  int newest, sinks;
  double decay = 1, hysteresis = -1;  ///< negative: nothing comes back
  bool per_head = false;
};

inline std::int64_t least_at_least(double share, std::int64_t n) {
  std::int64_t count = 0;
  while (static_cast<double>(count) < share * static_cast<double>(n) - 1e-6) ++count;
  return count;
}

inline Outcome tiers_loop(const AttentionInput& text, const LayerQuantizer& layer, const Rule& rule) {
  Outcome out;
  const int lists = rule.per_head ? kKvHeads : 1, heads = kKvHeads / lists;
  const auto tier_count = static_cast<int>(rule.shares.size());
  const PlainSide sides[2] = {{layer.key}, {layer.value}};
  out.tiers.assign(static_cast<std::size_t>(tier_count), KeptTokens(static_cast<std::size_t>(lists)));
  for (int list = 0; list < lists; ++list) {
    std::map<std::int64_t, Stored> stored[2];
    std::map<std::int64_t, int> tier;  // of tokens that are kept and not exact
    std::map<std::int64_t, double> mass;
    const auto fall = [&](std::int64_t position, int to) {
      const int from = tier[position];
      if (to == tier_count) {
        tier.erase(position);
        ++out.drops;
        return;
      }
      for (const int side : {0, 1}) sides[side].recode(stored[side][position], list * heads, heads, from, to);
      tier[position] = to;
      ++(to > from ? out.falls : out.returns);
    };
    const auto extreme = [&](int of, std::int64_t before, double sign) {
      std::int64_t found = -1;
      for (const auto& [position, own] : tier) {
        if (own == of && position < before && (found < 0 || sign * mass[position] < sign * mass[found]))
          found = position;
      }
      return found;
    };
    const auto row_of = [&](int side, std::int64_t position, int head) {
      const float* x = (side == 0 ? text.key : text.value).const_data_ptr<float>() + position * kWidth;
      Row row;
      if (position < rule.sinks) {
        for (int c = 0; c < kDim; ++c) row[c] = rounded(x[head * kDim + c]);
      } else {
        row = sides[side].decoded(stored[side][position], head, tier.count(position) ? tier[position] : tier_count - 1);
      }
      return side == 0 ? turned(row, position) : row;
    };
    for (std::int64_t t = 0; t < kTokens; ++t) {
      if (t >= rule.sinks) {
        for (const int side : {0, 1})
          stored[side][t] =
              sides[side].store((side == 0 ? text.key : text.value).const_data_ptr<float>() + t * kWidth, {});
        tier[t] = 0;
        mass[t] = 0;
        const std::int64_t n = t + 1 - rule.sinks;
        std::int64_t above = 0;
        for (int own = 0; own < tier_count; ++own) {
          std::int64_t limit = least_at_least(rule.shares[own], n);
          if (own == 0) limit = std::min<std::int64_t>(std::max<std::int64_t>(limit, rule.newest), n);
          limit = std::max(limit, above);
          const auto count = [&] {
            return std::count_if(tier.begin(), tier.end(), [&](const auto& entry) { return entry.second <= own; });
          };
          while (count() > limit) fall(extreme(own, own == 0 ? t + 1 - rule.newest : t + 1, 1), own + 1);
          above = limit;
        }
        for (int own = 0; rule.hysteresis >= 0 && own + 1 < tier_count; ++own) {
          const std::int64_t light = extreme(own, own == 0 ? t + 1 - rule.newest : t + 1, 1),
                             heavy = extreme(own + 1, t + 1, -1);
          if (light < 0 || heavy < 0 || !(mass[heavy] > (1 + rule.hysteresis) * mass[light])) continue;
          fall(light, own + 1);
          fall(heavy, own);
        }
      }
      std::vector<std::int64_t> seen;
      for (std::int64_t position = 0; position <= t; ++position) {
        if (position < rule.sinks || tier.count(position)) seen.push_back(position);
      }
      for (auto& [position, sum] : mass) sum *= rule.decay;
      for (int head = list * heads; head < (list + 1) * heads; ++head) {
        std::vector<Row> keys, values;
        for (const std::int64_t position : seen)
          keys.push_back(row_of(0, position, head)), values.push_back(row_of(1, position, head));
        for (int query = head * kGroup; query < (head + 1) * kGroup; ++query) {
          const std::vector<double> weight =
              weights_of(text.query.const_data_ptr<float>() + (t * kHeads + query) * kDim, t, keys);
          float* to = out.result.mutable_data_ptr<float>() + (t * kHeads + query) * kDim;
          for (int c = 0; c < kDim; ++c) {
            double sum = 0;
            for (std::size_t i = 0; i < seen.size(); ++i) sum += weight[i] * values[i][c];
            to[c] = static_cast<float>(sum);
          }
          for (std::size_t i = 0; i < seen.size(); ++i) {
            if (mass.count(seen[i])) mass[seen[i]] += weight[i];
          }
        }
      }
    }
    for (const auto& [position, own] : tier)
      out.tiers[static_cast<std::size_t>(own)][static_cast<std::size_t>(list)].push_back(position);
    for (const int side : {0, 1}) {
      for (std::int64_t position = 0; position < kTokens; ++position) {
        for (int head = list * heads; head < (list + 1) * heads; ++head) {
          const Row row = row_of(side, position, head);
          std::copy(row.begin(), row.end(),
                    out.held[side].mutable_data_ptr<float>() + (position * kKvHeads + head) * kDim);
        }
      }
    }
  }
  return out;
}

}  // namespace kvq::test
