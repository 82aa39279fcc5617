#pragma once
// Model, tokenizer and texts of kvq-fisher, loaded and checked against each other.

#include <memory>
#include <string>
#include <vector>

#include "kvq-fisher/options.h"

#include <kvq/calib/collect.h>
#include <kvq/core/log.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

struct FisherInputs : LoadedModel {
  std::unique_ptr<InputWatch> watch;
  std::vector<TokenStream> streams;

  std::int64_t tokens() const;
  std::vector<std::string> domains() const;
  std::string text_sha256() const;  ///< of the file; of several files: of their hashes, one a line
};

/// Throws Input, Format, Mismatch, Usage.
FisherInputs load_inputs(const FisherArguments& arguments, RunContext& context);

/// The sequences of the run. Throws Input when the texts hold too few.
std::vector<Window> choose_windows(const FisherArguments& arguments, const FisherInputs& inputs);

}  // namespace kvq::apps
