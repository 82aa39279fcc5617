#include <kvq/cache/cache_checks.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/numeric_check.h>

namespace kvq {

void check_input(const AttentionInput& input, const KvShape& shape) {
  if (input.layer < 0 || input.layer >= shape.layers || input.key.size(1) != shape.kv_heads ||
      input.key.size(2) != shape.head_dim || input.query.size(1) != shape.heads) {
    fail(ErrorKind::Mismatch,
         fmt::format(
             "layer {} with {} query heads, {} kv heads of {} channels does not belong to this quantizer: {} layers, "
             "{} query heads, {} kv heads of {} channels",
             input.layer, input.query.size(1), input.key.size(1), input.key.size(2), shape.layers, shape.heads,
             shape.kv_heads, shape.head_dim));
  }
  KVQ_ASSERT(input.key.size(0) == input.value.size(0));
  const std::string where = fmt::format("layer {}", input.layer);
  check_finite(input.key, where, "key", input.first_position);
  check_finite(input.value, where, "value", input.first_position);
}

void fail_overflow(int layer, Side side, std::int64_t first_token, int head_dim, const ExactOverflow& overflow) {
  fail(
      ErrorKind::Numeric,
      fmt::format("layer {}: {} of token {}, head {}, channel {} is {}, which does not fit the exact fp16 form of this "
                  "quantizer (largest value {}): its calibration saw nothing as large",
                  layer, side_name(side), first_token + overflow.token, overflow.channel / head_dim,
                  overflow.channel % head_dim, overflow.value, overflow.limit));
}

}  // namespace kvq
