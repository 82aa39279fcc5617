#include "support/catch.h"
#include "support/temp_dir.h"

#include <cstdlib>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>

using namespace kvq;
using kvq::test::entries;
using kvq::test::TempDir;
using kvq::test::write_bytes;

namespace {
// FIPS 180-2 and NIST's example values.
const std::string kEmpty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const std::string kAbc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
const std::string kTwoBlocks = "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1";
const std::string kMillion = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
// 17 MiB of 'a' by coreutils: head -c 17825792 /dev/zero | tr '\0' a | sha256sum
const std::string kSeventeenMebi = "2cabb964545c9b0810d9b0ecb9b388f2c48ba7b4b1ff08442a11fe5910bded55";
}  // namespace

TEST_CASE("SHA-256 of NIST's examples") {
  CHECK(sha256_of("") == kEmpty);
  CHECK(sha256_of("abc") == kAbc);
  CHECK(sha256_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") == kTwoBlocks);
  CHECK(sha256_of(std::string(1000000, 'a')) == kMillion);
}

TEST_CASE("A hash fed in pieces equals the hash of the whole") {
  Sha256 hash;
  for (int piece = 0; piece < 1000; ++piece) hash.update(std::string(1000, 'a'));
  CHECK(hash.finish() == kMillion);
  Sha256 moved = Sha256();
  moved.update("a");
  Sha256 target(std::move(moved));
  target.update("bc");
  CHECK(target.finish() == kAbc);
}

TEST_CASE("The hash of a file is that of its bytes") {
  TempDir dir;
  write_bytes(dir / "abc", "abc");
  write_bytes(dir / "empty", "");
  CHECK(sha256_of_file(dir / "abc") == kAbc);
  CHECK(sha256_of_file(dir / "empty") == kEmpty);
}

TEST_CASE("What is no readable file has no hash: an Input error names it") {
  TempDir dir;
  for (const std::filesystem::path& path : {dir / "none", dir.path(), std::filesystem::path("/dev/zero")}) {
    try {
      sha256_of_file(path);
      FAIL("no error for " << path);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Input);
      CHECK_THAT(std::string(error.what()), ContainsSubstring(path.string()));
    }
  }
}

TEST_CASE("A large file is hashed once, and again when it has changed") {
  TempDir dir;
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before ? before : "";
  ::setenv("XDG_CACHE_HOME", (dir / "cache").c_str(), 1);
  const std::string content(17 << 20, 'a');
  write_bytes(dir / "large", content);
  CHECK(sha256_of_file(dir / "large") == kSeventeenMebi);
  REQUIRE(entries(dir / "cache/kvq/hashes") == 1);
  // The entry is what the second call answers with.
  const auto entry = std::filesystem::directory_iterator(dir / "cache/kvq/hashes")->path();
  write_bytes(entry, std::string(64, 'f'));
  CHECK(sha256_of_file(dir / "large") == std::string(64, 'f'));
  write_bytes(entry, "damaged");
  CHECK(sha256_of_file(dir / "large") == kSeventeenMebi);
  write_bytes(dir / "large", content + "a");
  CHECK(sha256_of_file(dir / "large") == sha256_of(content + "a"));

  ::setenv("XDG_CACHE_HOME", "/proc/no-cache-here", 1);  // a cache that cannot be written costs time only
  CHECK(sha256_of_file(dir / "large") == sha256_of(content + "a"));
  if (before) {
    ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
  } else {
    ::unsetenv("XDG_CACHE_HOME");
  }
}
