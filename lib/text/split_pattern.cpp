#include <kvq/text/split_pattern.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char* const kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char* const kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

constexpr std::string_view kWhiteSpace = R"(\t-\r \x{85}\p{Z})";  // as the inside of a class
constexpr std::string_view kSameInBoth = "pPrntfvdD";             // escapes that mean the same to both libraries

[[noreturn]] void unsupported(const std::string& pattern, std::string_view what) {
  fail(ErrorKind::Format, fmt::format("pre-tokenizer pattern `{}`: {} is not supported", pattern, what));
}

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

/// Oniguruma's spelling to PCRE2's.
std::string translate(const std::string& pattern) {
  std::string out;
  bool in_class = false;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    const char c = pattern[at];
    if (c == '\\') {
      if (++at == pattern.size()) unsupported(pattern, "a trailing backslash");
      const char escaped = pattern[at];
      if (escaped == 's') {
        out += in_class ? std::string(kWhiteSpace) : fmt::format("[{}]", kWhiteSpace);
      } else if (escaped == 'S' && !in_class) {
        out += fmt::format("[^{}]", kWhiteSpace);
      } else if (!is_letter_or_digit(escaped) || kSameInBoth.find(escaped) != std::string_view::npos) {
        out += c;
        out += escaped;
      } else {
        unsupported(pattern, fmt::format("\\{}{}", escaped, in_class ? " inside a class" : ""));
      }
    } else if (in_class) {
      if (c == '[') unsupported(pattern, "a class inside a class");
      if (c == '&' && pattern.substr(at, 2) == "&&") unsupported(pattern, "an intersection of classes (&&)");
      in_class = c != ']';
      out += c;
    } else {
      if (c == '^' || c == '$') unsupported(pattern, fmt::format("the anchor {}", c));
      if (c == '[') {
        in_class = true;
        out += c;
        if (pattern.substr(at + 1, 1) == "^") out += pattern[++at];
        if (pattern.substr(at + 1, 1) == "]") unsupported(pattern, "an empty class");
        continue;
      }
      out += c;
    }
  }
  return out;
}

}  // namespace

struct SplitPattern::Impl {
  std::string text;
  SplitStage::Keep keep = SplitStage::Keep::All;
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code{nullptr, &pcre2_code_free};
};

struct SplitPattern::Scratch::Impl {
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match{nullptr, &pcre2_match_data_free};
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context{nullptr, &pcre2_match_context_free};
  std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack{nullptr, &pcre2_jit_stack_free};
};

SplitPattern::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {
  impl_->match.reset(pcre2_match_data_create(1, nullptr));
  impl_->context.reset(pcre2_match_context_create(nullptr));
  if (!impl_->match || !impl_->context) fail(ErrorKind::Memory, "no memory for matching regular expressions");
  // The default limits count steps and would stop at some ten megabytes of blanks.
  pcre2_set_match_limit(impl_->context.get(), ~std::uint32_t{0});
  pcre2_set_depth_limit(impl_->context.get(), ~std::uint32_t{0});
  impl_->stack.reset(pcre2_jit_stack_create(64 << 10, 64 << 20, nullptr));
  if (impl_->stack) pcre2_jit_stack_assign(impl_->context.get(), nullptr, impl_->stack.get());
}
SplitPattern::Scratch::~Scratch() = default;

SplitPattern::SplitPattern(const SplitStage& stage) : impl_(std::make_unique<Impl>()) {
  impl_->text = stage.pattern;
  impl_->keep = stage.keep;
  const std::string pattern = stage.literal ? stage.pattern : translate(stage.pattern);
  const std::uint32_t options = stage.literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP;
  int error = 0;
  PCRE2_SIZE offset = 0;
  impl_->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr));
  if (!impl_->code) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(error, message.data(), message.size());
    fail(ErrorKind::Format, fmt::format("pre-tokenizer pattern `{}`: {} (at {} of `{}`)", stage.pattern,
                                        reinterpret_cast<const char*>(message.data()), offset, pattern));
  }
  pcre2_jit_compile(impl_->code.get(),
                    PCRE2_JIT_COMPLETE);  // without a JIT compiler it is interpreted: slower, same result
}
SplitPattern::~SplitPattern() = default;
SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;

void SplitPattern::split(std::string_view text, Scratch& scratch,
                         const std::function<void(std::string_view)>& piece) const {
  const auto add = [&](std::size_t begin, std::size_t end, bool match) {
    const bool wanted = impl_->keep == SplitStage::Keep::All || match == (impl_->keep == SplitStage::Keep::Matches);
    if (begin < end && wanted) piece(text.substr(begin, end - begin));
  };
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.impl_->match.get());
  std::size_t done = 0, from = 0;
  while (from < text.size()) {
    const auto run = [&](std::uint32_t options) {
      return pcre2_match(impl_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | options,
                         scratch.impl_->match.get(), scratch.impl_->context.get());
    };
    int found = run(0);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) found = run(PCRE2_NO_JIT);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      fail(ErrorKind::Memory,
           fmt::format("pre-tokenizer pattern `{}` failed at byte {} of a piece of {} bytes: PCRE2 error {}",
                       impl_->text, from, text.size(), found));
    }
    const std::size_t begin = range[0], end = range[1];
    if (begin == end) {  // an empty match cuts, too; go on behind the next character
      add(done, begin, false);
      done = begin;
      from = end + 1;
      while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0u) == 0x80u) ++from;
      continue;
    }
    add(done, begin, false);
    add(begin, end, true);
    done = from = end;
  }
  add(done, text.size(), false);
}

}  // namespace kvq
