#pragma once
// Reading facts off the source of a chat template.

#include <optional>
#include <string>
#include <string_view>

namespace kvq {

class JinjaSource {
 public:
  /// Escaped line breaks of string literals become real ones, so that literals look alike however they are written.
  explicit JinjaSource(std::string_view source);

  bool has(std::string_view part) const { return text_.find(part) != std::string::npos; }
  /// As has(), blanks aside.
  bool has_compact(std::string_view part) const { return compact_.find(part) != std::string::npos; }
  /// Message contents are stripped of white space at both ends.
  bool trims() const;

  /// The literal text between the first `open` and `close` that have nothing but text between them.
  std::optional<std::string> literal(std::string_view open, std::string_view close) const;
  /// `marker` with the one blank before and after it that its string literal may have, e.g. "[INST] ".
  std::string with_blanks(std::string_view marker) const;
  /// Inside of the first {{ … }} that holds both parts, without blanks at its ends.
  std::optional<std::string> expression(std::string_view part, std::string_view other) const;

 private:
  std::string text_, compact_;
};

/// Without white space at both ends, as Python's str.strip.
std::string stripped(std::string_view text);

}  // namespace kvq
