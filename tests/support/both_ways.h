#pragma once
// A test that runs twice: with the loops written for the CPU, and with the operations that other devices take in their
// place (cpu_loops.h).

#include <optional>

#include "support/catch.h"

#include <kvq/model/cpu_loops.h>

namespace kvq::test {

struct Way {
  explicit Way(bool operations) {
    if (operations) without_loops.emplace();
  }
  std::optional<WithoutCpuLoops> without_loops;
};

}  // namespace kvq::test

/// The first statement of such a test.
#define KVQ_BOTH_WAYS()                                                 \
  const bool kvq_operations = GENERATE(false, true);                    \
  INFO((kvq_operations ? "libtorch's operations" : "the CPU's loops")); \
  const kvq::test::Way kvq_way(kvq_operations)
