#include <kvq/core/job_queue.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "support/catch.h"

using namespace kvq;

namespace {

void wait_for(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace

TEST_CASE("Jobs are done in the order in which they come, with and without a thread") {
  for (const std::size_t waiting : {0, 1, 3, 100}) {
    std::vector<int> done;
    JobQueue queue(waiting);
    for (int job = 0; job < 50; ++job) queue.run([&done, job] { done.push_back(job); });
    queue.finish();
    REQUIRE(done.size() == 50);
    for (int job = 0; job < 50; ++job) CHECK(done[static_cast<std::size_t>(job)] == job);
  }
}

TEST_CASE("Without a thread a job is done where it comes from, with one it is not") {
  std::thread::id where;
  JobQueue(0).run([&] { where = std::this_thread::get_id(); });
  CHECK(where == std::this_thread::get_id());
  {
    JobQueue queue(2);
    queue.run([&] { where = std::this_thread::get_id(); });
  }
  CHECK(where != std::this_thread::get_id());
}

TEST_CASE("No more jobs wait than there is room for") {
  std::atomic<bool> go{false}, third_is_in{false};
  JobQueue queue(2);
  for (int job = 0; job < 2; ++job) queue.run([&] { wait_for(go); });
  std::thread caller([&] {
    queue.run([] {});
    third_is_in = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_FALSE(third_is_in);
  go = true;
  caller.join();
  CHECK(third_is_in);
}

TEST_CASE("What a job throws comes out of the calls after it, and no later job is done") {
  std::atomic<bool> go{false};
  int done = 0;
  JobQueue queue(4);
  queue.run([&] {
    wait_for(go);
    throw std::runtime_error("disk full");
  });
  queue.run([&] { ++done; });
  go = true;
  CHECK_THROWS_WITH(queue.finish(), ContainsSubstring("disk full"));
  CHECK_THROWS_WITH(queue.run([&] { ++done; }), ContainsSubstring("disk full"));
  CHECK(done == 0);

  JobQueue none(0);
  CHECK_THROWS_WITH(none.run([] { throw std::runtime_error("at once"); }), ContainsSubstring("at once"));
}

TEST_CASE("The end of a queue does what waits") {
  std::atomic<int> done{0};
  {
    JobQueue queue(8);
    for (int job = 0; job < 8; ++job) {
      queue.run([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        ++done;
      });
    }
  }
  CHECK(done == 8);
}
