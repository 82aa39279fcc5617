#pragma once
// A tiny real model (two layers, grouped queries) with random windows, and runs of collect_calibration in child
// processes.

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/calib/collect.h>
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

/// `work` in a child process; a negative result is the signal that ended it.
inline int in_child(const std::function<void()>& work) {
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    int outcome = kDone;
    try {
      work();
    } catch (const Error& error) {
      outcome = error.kind() == ErrorKind::Io ? kIoError : kOtherError;
    } catch (...) {
      outcome = kOtherError;
    }
    std::_Exit(outcome);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace kvq::test
