#include <kvq/core/error.h>

#include <fmt/format.h>

namespace kvq {

void fail(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::Usage:
    case ErrorKind::Input:
    case ErrorKind::Format:
    case ErrorKind::Mismatch:
      return 2;
    case ErrorKind::Interrupted:
      return 130;
    case ErrorKind::Numeric:
    case ErrorKind::Io:
    case ErrorKind::Memory:
    case ErrorKind::Device:
      return 1;
  }
  return 1;
}

namespace detail {
void assertion_failed(const char* condition, const char* file, int line) {
  throw std::logic_error(fmt::format("internal error, please report: {} at {}:{}", condition, file, line));
}
}  // namespace detail

}  // namespace kvq
