#include "support/catch.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>

using namespace kvq;

TEST_CASE("Every index is visited exactly once, however many threads there are") {
  for (int threads : {-1, 0, 1, 2, 3, 16}) {
    for (std::int64_t count : {0, 1, 2, 17, 1000}) {
      std::vector<std::atomic<int>> visits(count);
      parallel_for(count, threads, [&](std::int64_t index) { ++visits[index]; });
      for (const auto& seen : visits) REQUIRE(seen == 1);
    }
  }
}

TEST_CASE("Ranges cover everything without overlap and none is longer than the grain") {
  for (std::int64_t grain : {1, 7, 1000}) {
    for (std::int64_t count : {0, 1, 6, 7, 8, 1000, 1001}) {
      std::vector<std::atomic<int>> visits(count);
      parallel_ranges(count, grain, 3, [&](std::int64_t begin, std::int64_t end) {
        if (begin % grain != 0 || end - begin > grain || end <= begin) throw std::logic_error("range");
        for (std::int64_t index = begin; index < end; ++index) ++visits[index];
      });
      for (const auto& seen : visits) REQUIRE(seen == 1);
    }
  }
}

TEST_CASE("Results written per index do not depend on the number of threads") {
  const auto compute = [](int threads) {
    std::vector<double> result(500);
    parallel_for(500, threads, [&](std::int64_t index) {
      for (int term = 1; term < 200; ++term) result[index] += 1.0 / (static_cast<double>(index) + term);
    });
    return result;
  };
  const std::vector<double> one = compute(1);
  CHECK(compute(2) == one);
  CHECK(compute(5) == one);
}

TEST_CASE("The first exception is rethrown and stops the hand-out") {
  for (int threads : {1, 2, 4}) {
    std::atomic<int> calls{0};
    CHECK_THROWS_WITH(parallel_for(1000000, threads,
                                   [&](std::int64_t index) {
                                     ++calls;
                                     if (index == 10) throw std::runtime_error("index 10");
                                   }),
                      "index 10");
    CHECK(calls >= 11);
    CHECK(calls < 1000000);
  }
}

TEST_CASE("There is at least one core") { CHECK(available_cores() >= 1); }

TEST_CASE("Threads that the system refuses are an error, not something to wait for") {
  CHECK_NOTHROW(require_threads(8));
#ifndef __SANITIZE_ADDRESS__  // needs more address space than a limit leaves
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit limit{64u << 20, 64u << 20};  // less than what is mapped: no stack for anybody
    ::setrlimit(RLIMIT_AS, &limit);
    int code = 1;
    try {
      require_threads(500);
    } catch (const Error& error) {
      const std::string message = error.what();
      code = error.kind() == ErrorKind::Memory && message.find("500 are needed") != std::string::npos ? 0 : 2;
    } catch (...) {
      code = 3;
    }
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
#endif
}
