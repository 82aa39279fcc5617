#pragma once
// Ends a test that cannot run here, with the reason. CTest counts it as skipped under Catch2 v2 (which has no notion of
// it) as under v3: tests/support/discover_tests.cmake looks for the words.

#include "support/catch.h"

#define KVQ_SKIP(reason)                    \
  do {                                      \
    WARN("kvq test skipped: " << (reason)); \
    return;                                 \
  } while (false)
