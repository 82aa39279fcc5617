#pragma once
// The one exception type of the library. Library code throws it and never prints, aborts or exits.

#include <stdexcept>
#include <string>

namespace kvq {

/// What went wrong, from the user's point of view; apps/common maps it to an exit code (see exit_code()).
enum class ErrorKind {
  Usage,        ///< bad option or recipe                                        -> exit 2
  Input,        ///< a file that cannot be used: missing, wrong type, bad text   -> exit 2
  Format,       ///< a damaged or unknown file format                            -> exit 2
  Mismatch,     ///< artifacts, model or text do not belong together             -> exit 2
  Numeric,      ///< NaN/Inf or overflow during a run                            -> exit 1
  Io,           ///< disk full, read or write error during a run                 -> exit 1
  Memory,       ///< not enough memory                                           -> exit 1
  Device,       ///< accelerator missing or failing                              -> exit 1
  Interrupted,  ///< stopped by the user                                         -> exit 130
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

/// Throws Error. The message says what, which file or flag, which value, and what would be right.
[[noreturn]] void fail(ErrorKind kind, const std::string& message);

/// Documented exit code of a kind: 1, 2 or 130 (DESIGN: command-line contract).
int exit_code(ErrorKind kind);

namespace detail {
[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);
}

}  // namespace kvq

/// For our own mistakes, never for user data (that is `fail`). Throws std::logic_error, in every build type.
#define KVQ_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::kvq::detail::assertion_failed(#condition, __FILE__, __LINE__))
