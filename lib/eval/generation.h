#pragma once
// Text that a model writes after a prompt, with a cache of any kind.

#include <cstdint>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/model/model.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

/// The most likely token each time, until EOS or `new_tokens` tokens. The cache is filled by the whole prompt at once,
/// then token by token, and forgets everything at the end. Throws Interrupted between layers.
std::vector<std::int32_t> greedy_continuation(Model& model, const Tokenizer& tokenizer,
                                              const std::vector<std::int32_t>& prompt, AttentionBackend& cache,
                                              int new_tokens, RunContext& context);

}  // namespace kvq
