#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/core/log.h>

using namespace kvq;

TEST_CASE("Exit codes are those of the documented table") {
  for (ErrorKind kind : {ErrorKind::Usage, ErrorKind::Input, ErrorKind::Format, ErrorKind::Mismatch})
    CHECK(exit_code(kind) == 2);
  for (ErrorKind kind : {ErrorKind::Numeric, ErrorKind::Io, ErrorKind::Memory, ErrorKind::Device})
    CHECK(exit_code(kind) == 1);
  CHECK(exit_code(ErrorKind::Interrupted) == 130);
}

TEST_CASE("A failure carries its kind and its message unchanged") {
  try {
    fail(ErrorKind::Mismatch, "a {} b");
    FAIL("fail() returned");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Mismatch);
    CHECK(std::string(error.what()) == "a {} b");
  }
}

TEST_CASE("A broken assumption of ours throws in every build type and says where") {
  CHECK_NOTHROW(KVQ_ASSERT(1 + 1 == 2));
  CHECK_THROWS_WITH(KVQ_ASSERT(1 + 1 == 3), ContainsSubstring("1 + 1 == 3") && ContainsSubstring("error_test.cpp"));
  CHECK_THROWS_AS(KVQ_ASSERT(false), std::logic_error);
}

TEST_CASE("A cancelled token interrupts at the next check") {
  CancelToken token;
  CHECK_NOTHROW(token.check());
  token.cancel();
  try {
    token.check();
    FAIL("check() returned");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Interrupted);
  }
}
