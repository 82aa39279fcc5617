// Memory that runs out while an artifact is read is said to be that: no sound file is called damaged.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <new>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/skip.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

namespace {

/// Takes all memory that a limit leaves, in blocks that can be given back one by one.
class Hoard {
 public:
  Hoard() {
    const rlimit limit{1u << 20, 1u << 20};  // less than what is mapped: nothing new
    ::setrlimit(RLIMIT_AS, &limit);
    for (std::size_t bytes = 1 << 20; bytes >= 16; bytes /= 2) {
      while (void* block = std::malloc(bytes)) {
        *static_cast<void**>(block) = last_;
        last_ = block;
      }
    }
  }
  /// False when all of it is given back. The smallest blocks come first.
  bool give_back() {
    void* block = last_;
    if (!block) return false;
    last_ = *static_cast<void**>(block);
    std::free(block);
    return true;
  }

 private:
  void* last_ = nullptr;
};

}  // namespace

TEST_CASE("However little memory there is, a sound artifact is read, or memory is what is missing") {
#ifdef __SANITIZE_ADDRESS__
  KVQ_SKIP("the address sanitizer's memory lives under no limit");
#endif
  TempDir folder;
  const auto path = folder / "q.h5";
  write_quantizer(path, sample_quantizer(), false);
  read_quantizer(path);  // HDF5 has started
  std::cout.flush();
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Hoard hoard;
    int starved = 0;
    for (bool more = true; more;) {
      for (int block = 0; block < 50 && more; ++block) more = hoard.give_back();
      try {
        read_quantizer(path);
        ::_exit(starved > 0 ? 0 : 1);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::Memory) ::_exit(10 + static_cast<int>(error.kind()));
        ++starved;
      } catch (const std::bad_alloc&) {
        ++starved;
      }
    }
    ::_exit(2);  // not even with all of it
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
