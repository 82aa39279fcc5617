#include <kvq/core/parallel.h>

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <latch>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq {

void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t)>& body) {
  const int workers = static_cast<int>(std::min<std::int64_t>(count, std::max(1, threads)));
  if (workers <= 1) {
    for (std::int64_t index = 0; index < count; ++index) body(index);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::exception_ptr first_error;
  std::mutex error_mutex;
  auto work = [&] {
    try {
      for (std::int64_t index = next++; index < count; index = next++) body(index);
    } catch (...) {
      next = count;
      std::lock_guard lock(error_mutex);
      if (!first_error) first_error = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  try {
    for (int worker = 1; worker < workers; ++worker) pool.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads to be had: those that run do all the work.
  }
  work();
  for (std::thread& thread : pool) thread.join();
  if (first_error) std::rethrow_exception(first_error);
}

void parallel_ranges(std::int64_t count, std::int64_t grain, int threads,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t ranges = (count + grain - 1) / grain;
  parallel_for(ranges, threads, [&](std::int64_t range) {
    const std::int64_t begin = range * grain;
    body(begin, std::min(count, begin + grain));
  });
}

void require_threads(int threads) {
  std::latch all_are_there(1);
  std::vector<std::thread> pool;
  std::string problem;
  try {
    pool.reserve(static_cast<std::size_t>(threads));
    while (static_cast<int>(pool.size()) < threads) pool.emplace_back([&] { all_are_there.wait(); });
  } catch (const std::system_error& error) {
    problem = error.code().message();
  } catch (const std::bad_alloc&) {
    problem = "out of memory";
  }
  const std::size_t started = pool.size();
  all_are_there.count_down();
  for (std::thread& thread : pool) thread.join();
  if (!problem.empty())
    fail(ErrorKind::Memory, fmt::format("the system allows {} more threads, {} are needed ({}): free memory, raise the "
                                        "limits (ulimit -u, ulimit -v) or use fewer --threads",
                                        started, threads, problem));
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace kvq
