#include <kvq/core/job_queue.h>

#include <utility>

namespace kvq {

JobQueue::JobQueue(std::size_t waiting) : room_(waiting) {
  if (room_ > 0) thread_ = std::thread([this] { work(); });
}

JobQueue::~JobQueue() {
  if (room_ == 0) return;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void JobQueue::run(std::function<void()> job) {
  if (room_ == 0) return job();
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.size() < room_ || error_; });
    rethrow_error();
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void JobQueue::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() || error_; });
  rethrow_error();
}

void JobQueue::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return !jobs_.empty() || ending_; });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    lock.unlock();
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) {
      error_ = error;
      jobs_.clear();
      changed_.notify_all();
      return;
    }
    jobs_.pop_front();
    changed_.notify_all();
  }
}

/// The lock is held.
void JobQueue::rethrow_error() {
  if (error_) std::rethrow_exception(error_);
}

}  // namespace kvq
