#pragma once
// Jobs one after another, in the order in which they come: where they come from, or on a thread of its own that works
// while the next ones are prepared.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace kvq {

/// For one caller at a time.
class JobQueue {
 public:
  /// `waiting`: so many jobs may wait for the thread; 0: there is no thread, and run() does the job itself.
  explicit JobQueue(std::size_t waiting);
  /// Does what waits. Errors are lost here: finish() tells them.
  ~JobQueue();
  JobQueue(const JobQueue&) = delete;
  JobQueue& operator=(const JobQueue&) = delete;

  /// Waits until there is room. Rethrows what a job before threw; after one that threw no other is done.
  void run(std::function<void()> job);
  /// Waits until all is done. Throws as run().
  void finish();

 private:
  void work();
  void rethrow_error();

  const std::size_t room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;  ///< the first one is being done
  bool ending_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace kvq
