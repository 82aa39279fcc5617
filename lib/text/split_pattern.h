#pragma once
// Pre-tokenization: cutting text into words with the regular expressions that tokenizer files carry.
//
// Those expressions are written for Oniguruma (Hugging Face) and run here with PCRE2. \s and \S are rewritten to the
// property White_Space, which is what Oniguruma means by them (PCRE2 adds U+180E); constructs that the two libraries
// read differently (\w, \b, \h, ^, $, nested classes …) are refused instead of being guessed.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvq {

/// One step of a pre-tokenizer. Every step cuts each piece that the step before it left, and sees nothing around it.
struct SplitStage {
  enum class Keep { All, Matches, Gaps };
  std::string pattern;
  bool literal = false;  ///< plain text instead of a regular expression
  Keep keep = Keep::All;
};

/// GPT-2's expression, also behind the flag use_regex of Hugging Face's ByteLevel.
extern const char* const kGpt2Pattern;
extern const char* const kLlama3Pattern;
extern const char* const kQwen2Pattern;

/// A compiled stage. Immutable, may be shared between threads; each thread matches with its own Scratch.
class SplitPattern {
 public:
  /// Throws Format, naming the pattern and what is not supported or not well-formed in it.
  explicit SplitPattern(const SplitStage& stage);
  ~SplitPattern();
  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;

  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class SplitPattern;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// Hands on the pieces of `text` (valid UTF-8) in order, as views into it; none is empty. `piece` may use `scratch`.
  void split(std::string_view text, Scratch& scratch, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvq
