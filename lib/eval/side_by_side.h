#pragma once
// Greedy continuations of one prompt with several caches, and where they part. An illustration of what a cache does to
// a text, never a measure of it: one flipped token makes another text, however small the damage.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <kvq/core/log.h>
#include <kvq/eval/perplexity.h>
#include <kvq/text/tokenizer.h>

namespace kvq {

struct Continuation {
  std::string name;
  std::string sha256 = {};  ///< of the quantizer file; empty for the baseline
  WeightsSource weights = {};
  std::vector<std::int32_t> ids;  ///< what was generated, EOS left out
  bool ended = false;             ///< by EOS
  std::string text;               ///< of `ids`
  /// Index of the first generated token (EOS counts) that is not the baseline's; nullopt for the baseline, and where
  /// all are the same.
  std::optional<std::int64_t> parts_at;
  /// KL(unquantized ‖ this cache) in nats over tokens after the same text: at parts_at, and the mean over the shared
  /// tokens up to and with it. 0 for the baseline.
  double kl_at_parting = 0, kl_mean = 0;
};

/// Unquantized first. All caches are held at the same time and go on token by token. Throws Interrupted.
std::vector<Continuation> continue_side_by_side(Model& model, const Tokenizer& tokenizer,
                                                const std::vector<std::int32_t>& prompt,
                                                const std::vector<NamedQuantizer>& quantizers, int new_tokens,
                                                RunContext& context);

/// The text with `mark` where it leaves the baseline's (behind all of it where it never does: nothing is put in).
std::string marked_text(const Tokenizer& tokenizer, const Continuation& continuation, const std::string& mark);

}  // namespace kvq
