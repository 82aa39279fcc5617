#pragma once
// Text that a model writes after a prompt, with a cache of any kind.

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <kvq/core/log.h>
#include <kvq/model/model.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

/// A sequence that grows by what is chosen. The cache is filled by the whole prompt at once, then token by token; it
/// must be empty at first, and forgets everything when the generation ends.
class Generation {
 public:
  Generation(Model& model, AttentionBackend& cache, std::vector<std::int32_t> prompt);
  ~Generation() { cache_.reset(); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  /// Logits of what comes next, `[1, vocab]` fp32. Once for the prompt, then once after each accept(). Throws
  /// Interrupted between layers.
  at::Tensor next_logits(RunContext& context);
  void accept(std::int32_t token) { input_ = {token}; }

 private:
  Model& model_;
  AttentionBackend& cache_;
  std::vector<std::int32_t> input_;
  std::int64_t position_ = 0;
};

/// The most likely token of `[1, vocab]`.
std::int32_t most_likely(const at::Tensor& logits);

/// The most likely token each time, until EOS or `new_tokens` tokens. Throws Interrupted between layers.
std::vector<std::int32_t> greedy_continuation(Model& model, const Tokenizer& tokenizer,
                                              const std::vector<std::int32_t>& prompt, AttentionBackend& cache,
                                              int new_tokens, RunContext& context);

}  // namespace kvq
