#pragma once
// Tokens so far at the front of a tensor with room for more.

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace kvq {

struct GrownTokens {
  at::Tensor store;  ///< `[room, kv_heads, head_dim]`
  std::int64_t length = 0;

  /// The first tokens are taken without a copy. Room is doubled: token by token, each is copied a constant number of
  /// times.
  void append(const at::Tensor& more) {
    const std::int64_t needed = length + more.size(0);
    if (length == 0) {
      store = more;
    } else {
      if (needed > store.size(0)) {
        at::Tensor larger =
            at::empty({std::max(2 * store.size(0), needed), more.size(1), more.size(2)}, more.options());
        larger.narrow(0, 0, length).copy_(store.narrow(0, 0, length));
        store = larger;
      }
      store.narrow(0, length, more.size(0)).copy_(more);
    }
    length = needed;
  }
  at::Tensor all() const { return store.narrow(0, 0, length); }
};

}  // namespace kvq
