#include "common/terminal.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <kvq/core/error.h>

namespace kvq::apps {

namespace {

using Clock = std::chrono::steady_clock;

/// On a terminal one line that is rewritten, at most six times a second; otherwise a plain line now and then.
class Display final : public Progress {
 public:
  Display(bool enabled, bool terminal) : enabled_(enabled), terminal_(terminal) {}

  void begin(const std::string& what, std::int64_t total_steps) override {
    end();
    what_ = what;
    total_ = total_steps;
    done_ = 0;
    started_ = shown_ = Clock::now();
    active_ = enabled_ && total_ > 0;
    if (active_ && terminal_) show();
  }

  void advance(std::int64_t steps) override {
    done_ += steps;
    if (!active_) return;
    const double since = std::chrono::duration<double>(Clock::now() - shown_).count();
    if (since >= (terminal_ ? 1.0 / 6 : 15.0)) show();
  }

  void end() override {
    if (active_) clear();
    active_ = false;
  }

  /// Log lines first remove the bar, which comes back with the next step.
  void clear() {
    if (active_ && terminal_) std::fputs("\r\033[K", stderr);
  }

 private:
  void show() {
    shown_ = Clock::now();
    const double seconds = std::chrono::duration<double>(shown_ - started_).count();
    const double share = static_cast<double>(done_) / static_cast<double>(total_);
    std::string line = fmt::format("{}: {} of {} ({:.0f} %)", what_, done_, total_, 100 * share);
    if (done_ > 0) line += fmt::format(", {} left", human_seconds(seconds * (1 - share) / share));
    if (!terminal_) {
      std::fprintf(stderr, "%s\n", line.c_str());
      return;
    }
    constexpr int kBar = 24;
    const int filled = static_cast<int>(share * kBar);
    std::fprintf(stderr, "\r\033[K[%s%s] %s", std::string(filled, '#').c_str(), std::string(kBar - filled, '.').c_str(),
                 line.c_str());
    std::fflush(stderr);
  }

  bool enabled_, terminal_, active_ = false;
  std::string what_;
  std::int64_t total_ = 0, done_ = 0;
  Clock::time_point started_, shown_;
};

spdlog::level::level_enum spd_level(LogLevel level) {
  switch (level) {
    case LogLevel::Debug:
      return spdlog::level::debug;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warning:
      return spdlog::level::warn;
  }
  return spdlog::level::info;
}

/// %*: "warning: " before a warning, nothing before what is none.
class WarningFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/, spdlog::memory_buf_t& into) override {
    const std::string_view word = message.level == spdlog::level::warn ? "warning: " : "";
    into.append(word.data(), word.data() + word.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<WarningFlag>(); }
};

class SpdLog final : public Log {
 public:
  SpdLog(std::shared_ptr<spdlog::logger> logger, Display& display) : logger_(std::move(logger)), display_(display) {}
  void write(LogLevel level, const std::string& message) override {
    display_.clear();
    logger_->log(spd_level(level), message);
  }

 private:
  std::shared_ptr<spdlog::logger> logger_;
  Display& display_;
};

}  // namespace

struct Terminal::Impl {
  Display display;
  std::shared_ptr<spdlog::logger> logger;
  std::unique_ptr<SpdLog> log;
  Impl(bool enabled, bool terminal) : display(enabled, terminal) {}
};

Terminal::Terminal(const std::string& tool, const CommonOptions& options)
    : impl_(std::make_unique<Impl>(!options.quiet, isatty(STDERR_FILENO) != 0)) {
  auto console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  console->set_level(options.quiet ? spdlog::level::warn
                                   : (options.verbosity > 0 ? spdlog::level::debug : spdlog::level::info));
  // "kvq-fit: warning: …"; plain information carries no level.
  auto pattern = std::make_unique<spdlog::pattern_formatter>();
  pattern->add_flag<WarningFlag>('*').set_pattern(options.verbosity > 1 ? "[%T.%e] %n: %*%v" : "%n: %*%v");
  console->set_formatter(std::move(pattern));
  std::vector<spdlog::sink_ptr> sinks = {console};
  if (!options.log_file.empty()) {
    try {
      auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.log_file, false);
      file->set_level(spdlog::level::debug);
      file->set_pattern("%Y-%m-%d %T.%e %l %v");
      sinks.push_back(file);
    } catch (const spdlog::spdlog_ex& error) {
      fail(ErrorKind::Usage, fmt::format("--log-file '{}' cannot be opened: {}", options.log_file, error.what()));
    }
  }
  impl_->logger = std::make_shared<spdlog::logger>(tool, sinks.begin(), sinks.end());
  impl_->logger->set_level(spdlog::level::debug);
  // A log that cannot be written is no reason to stop, nor to say so with every line.
  impl_->logger->set_error_handler([tool, said = std::make_shared<bool>(false)](const std::string& problem) {
    if (!std::exchange(*said, true))
      std::fprintf(stderr, "%s: warning: --log-file: %s\n", tool.c_str(), problem.c_str());
  });
  impl_->logger->flush_on(spdlog::level::warn);
  impl_->log = std::make_unique<SpdLog>(impl_->logger, impl_->display);
}

Terminal::~Terminal() { impl_->logger->flush(); }

Log& Terminal::log() { return *impl_->log; }
Progress& Terminal::progress() { return impl_->display; }
void Terminal::error(const std::string& message) {
  impl_->display.clear();
  impl_->logger->error(message);
}

}  // namespace kvq::apps
