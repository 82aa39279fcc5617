#pragma once
// A tiny real model (two layers, grouped queries) with random windows, and runs of collect_calibration in child
// processes.

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/both_ways.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/calib/collect.h>
#include <kvq/calib/journal.h>
#include <kvq/core/error.h>
#include <kvq/core/rng.h>
#include <kvq/model/threads.h>

namespace kvq::test {

/// One thread: child processes are made by fork(), which the thread pools of libtorch do not survive.
inline std::unique_ptr<Model> tiny_model() {
  set_compute_threads(1);
  return load_model(KVQ_SOURCE_DIR "/tests/data/tiny/gqa-untied/model.gguf", {});
}

inline std::vector<Window> random_windows(const Model& model, int count, std::int64_t seqlen, std::uint64_t seed = 1) {
  Rng rng(seed);
  std::vector<Window> windows(static_cast<std::size_t>(count));
  for (int index = 0; index < count; ++index) {
    windows[index].stream = index % 2;
    for (std::int64_t token = 0; token < seqlen; ++token) {
      windows[index].ids.push_back(
          static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(model.config().vocab))));
    }
  }
  return windows;
}

inline CollectOptions options_for(const Model& model, const std::filesystem::path& output) {
  CollectOptions options;
  options.output = output;
  options.bos = "never";
  options.provenance = {model.sha256(), std::string(64, 'b'), std::string(64, 'c'), "samples = 3\nseed = 1\n", {}};
  return options;
}

inline const std::vector<std::string> kDomains = {"prose", "code"};

/// Does something at a chosen step of the progress: a sequence has two steps per layer, the assembly one.
class AtStep final : public Progress {
 public:
  AtStep(std::int64_t step, std::function<void()> action) : step_(step), action_(std::move(action)) {}
  void begin(const std::string&, std::int64_t) override {}
  void advance(std::int64_t steps) override {
    done_ += steps;
    if (step_ > 0 && done_ >= step_ && !std::exchange(acted_, true)) action_();
  }
  void end() override {}
  std::int64_t done() const { return done_; }

 private:
  std::int64_t step_, done_ = 0;
  bool acted_ = false;
  std::function<void()> action_;
};

inline CollectResult collect(Model& model, const std::vector<Window>& windows, const CollectOptions& options,
                             Progress& progress, int threads = 1) {
  const CancelToken cancel;
  RunContext context{quiet_context().log, progress, cancel, threads};
  return collect_calibration(model, windows, kDomains, options, context);
}
inline CollectResult collect(Model& model, const std::vector<Window>& windows, const CollectOptions& options) {
  return collect(model, windows, options, quiet_context().progress);
}

enum Outcome { kDone = 0, kIoError = 10, kOtherError = 11 };

/// A child process that does `work` and ends with an Outcome.
inline pid_t start_child(const std::function<void()>& work) {
  std::cout.flush();
  const pid_t child = ::fork();
  if (child != 0) return child;
  int outcome = kDone;
  try {
    work();
  } catch (const std::exception& problem) {
    std::cerr << problem.what() << std::endl;
    const auto* error = dynamic_cast<const Error*>(&problem);
    outcome = error != nullptr && error->kind() == ErrorKind::Io ? kIoError : kOtherError;
  }
  std::_Exit(outcome);
}

/// The Outcome; a negative result is the signal that ended it.
inline int wait_for_child(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}
inline int in_child(const std::function<void()>& work) { return wait_for_child(start_child(work)); }

/// Kills runs that make `output` after random times, later and later, until one ends by itself. `after_a_kill` looks at
/// what was left.
inline void kill_until_finished(
    const std::filesystem::path& output, std::uint64_t seed, const std::function<void()>& run,
    const std::function<void()>& after_a_kill = [] {}) {
  Rng rng(seed);
  int kills = 0, outcome = -SIGKILL;
  for (int attempt = 0; attempt < 400; ++attempt) {
    const pid_t child = start_child(run);
    ::usleep(static_cast<useconds_t>(500 + rng.below(static_cast<std::uint64_t>(15000 + 2000 * attempt))));
    ::kill(child, SIGKILL);
    outcome = wait_for_child(child);
    if (outcome >= 0) break;
    ++kills;
    after_a_kill();
  }
  CHECK(kills > 0);
  // Killed between its last step and its end, a run has finished: the next one finds a file, and no journal of its own.
  const bool had_finished = std::filesystem::exists(output) && !std::filesystem::exists(Journal::folder_of(output));
  CHECK((outcome == kDone || had_finished));
}

}  // namespace kvq::test
