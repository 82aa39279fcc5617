#include <kvq/core/log.h>

#include <kvq/core/error.h>

namespace kvq {

void CancelToken::check() const {
  if (cancelled()) fail(ErrorKind::Interrupted, "interrupted");
}

namespace {
struct NoLog final : Log {
  void write(LogLevel, const std::string&) override {}
};
struct NoProgress final : Progress {
  void begin(const std::string&, std::int64_t) override {}
  void advance(std::int64_t) override {}
  void end() override {}
};
}  // namespace

RunContext& quiet_context() {
  static NoLog log;
  static NoProgress progress;
  static CancelToken cancel;
  static RunContext context{log, progress, cancel, 2};
  return context;
}

}  // namespace kvq
