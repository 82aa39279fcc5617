#pragma once
// The synthetic long-context tasks of RULER (Hsieh et al., arXiv 2404.06654): what they ask is RULER's, words, numbers
// and sentences are made here from a seed. Scored by recall, as RULER does.

#include <cstdint>
#include <string>
#include <vector>

#include <kvq/tasks/task.h>

namespace kvq {

enum class RulerTask {
  NiahSingle,        ///< one key with one number, in filler
  NiahMultiKey,      ///< four keys with a number each, one is asked for
  NiahDense,         ///< no filler: nothing but keys and numbers, one is asked for
  NiahMultiValue,    ///< one key with four numbers, all are asked for
  NiahMultiQuery,    ///< four keys with a number each, all are asked for
  VariableTracking,  ///< a value handed on through four assignments: which five variables have it?
  CommonWords,       ///< the ten words that a list repeats most: 30 times against 3 (below 4096 tokens 10 against 1)
  FrequentWords,     ///< the three most frequent of words with frequencies falling as rank⁻²
};

/// Names on the command line, in the order of RulerTask.
const std::vector<std::string>& ruler_names();

/// As long as fits `length` tokens in the form that is asked for. The same for the same arguments, on every platform.
/// Throws Usage when not even the shortest one fits.
Task make_ruler_task(RulerTask kind, const Tokenizer& tokenizer, std::int64_t length, bool chat, bool prepend_bos,
                     std::uint64_t seed);

struct RulerOptions {
  std::vector<std::string> names;  ///< or "all"
  std::vector<std::int64_t> lengths;
  std::int64_t samples = 10;  ///< of each kind and length
  std::uint64_t seed = 0;
  bool chat = false;
};

/// All tasks, by kind, length and sample; each has a seed of its own, which does not depend on what else is asked for.
/// Throws Usage for a name that is unknown or there twice, and as make_ruler_task().
std::vector<Task> make_ruler_tasks(const RulerOptions& options, const Tokenizer& tokenizer, bool prepend_bos);

}  // namespace kvq
