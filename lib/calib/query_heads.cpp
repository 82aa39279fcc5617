#include <fmt/format.h>

#include <kvq/calib/collect.h>
#include <kvq/core/error.h>

namespace kvq {

const char* query_heads_name(QueryHeads mode) {
  return mode == QueryHeads::Joint ? "joint" : mode == QueryHeads::Mean ? "mean" : "max";
}

QueryHeads parse_query_heads(const std::string& word) {
  for (const QueryHeads mode : {QueryHeads::Joint, QueryHeads::Mean, QueryHeads::Max})
    if (word == query_heads_name(mode)) return mode;
  fail(ErrorKind::Usage, fmt::format("--query-heads '{}' is unknown; known: joint, mean, max", word));
}

at::Tensor over_query_heads(const at::Tensor& parts, std::int64_t kv_heads, QueryHeads mode) {
  KVQ_ASSERT(mode != QueryHeads::Joint);
  const std::int64_t tokens = parts.size(0), group = parts.size(1) / kv_heads, head_dim = parts.size(2);
  const at::Tensor grouped = parts.view({tokens, kv_heads, group, head_dim});
  const std::int64_t group_axis[] = {2};
  const at::IntArrayRef axis(group_axis);
  if (mode == QueryHeads::Max) return grouped.abs().amax(axis).mul(static_cast<double>(group)).contiguous();
  // Squares of small gradients would underflow in fp32.
  return grouped.to(at::kDouble).square().mean(axis).sqrt().mul(static_cast<double>(group)).to(at::kFloat).contiguous();
}

}  // namespace kvq
