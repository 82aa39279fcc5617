#pragma once
// Logging and progress *interfaces*. The library reports through them; only apps/common decides what a terminal shows.

#include <atomic>
#include <cstdint>
#include <string>

namespace kvq {

enum class LogLevel { Debug, Info, Warning };

class Log {
 public:
  virtual ~Log() = default;
  virtual void write(LogLevel level, const std::string& message) = 0;
  void debug(const std::string& message) { write(LogLevel::Debug, message); }
  void info(const std::string& message) { write(LogLevel::Info, message); }
  void warning(const std::string& message) { write(LogLevel::Warning, message); }
};

/// Long work in countable steps. begin/advance/end are called from one thread.
class Progress {
 public:
  virtual ~Progress() = default;
  virtual void begin(const std::string& what, std::int64_t total_steps) = 0;
  virtual void advance(std::int64_t steps) = 0;
  virtual void end() = 0;
};

/// Asked between steps of long work; set by a signal handler (lock-free).
class CancelToken {
 public:
  void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
  /// Throws Interrupted once cancelled.
  void check() const;

 private:
  std::atomic<bool> cancelled_{false};
};

/// What long work needs from its surroundings. All references outlive the work.
struct RunContext {
  Log& log;
  Progress& progress;
  const CancelToken& cancel;
  int threads = 1;
};

/// A RunContext that says nothing and is never cancelled: for tests and for library users who want none of it.
RunContext& quiet_context();

}  // namespace kvq
