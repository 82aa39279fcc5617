#include "support/catch.h"
#include "support/temp_dir.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>

using namespace kvq;
using kvq::test::entries;
using kvq::test::read_bytes;
using kvq::test::TempDir;
using kvq::test::write_bytes;
namespace fs = std::filesystem;

namespace {

/// Kind of the error that `work` throws, with its message; fails the test when it throws none.
template <typename Work>
std::pair<ErrorKind, std::string> error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return {error.kind(), error.what()};
  }
  FAIL("no error was thrown");
  return {};
}

}  // namespace

TEST_CASE("The output appears under its name only when it is committed") {
  TempDir dir;
  {
    AtomicFile file(dir / "out.h5", false);
    CHECK(entries(dir.path()) == 0);  // the check itself leaves nothing
    CHECK(file.temporary().parent_path() == dir.path());
    write_bytes(file.temporary(), "content");
    CHECK_FALSE(fs::exists(dir / "out.h5"));
    file.commit();
  }
  CHECK(read_bytes(dir / "out.h5") == "content");
  CHECK(entries(dir.path()) == 1);
}

TEST_CASE("Nothing is left of an output that was not committed") {
  TempDir dir;
  {
    AtomicFile file(dir / "out.h5", false);
    write_bytes(file.temporary(), "half");
  }
  CHECK(entries(dir.path()) == 0);
}

TEST_CASE("An existing output is refused without force and replaced with it") {
  TempDir dir;
  write_bytes(dir / "out.h5", "old");
  const auto [kind, message] = error_of([&] { AtomicFile(dir / "out.h5", false); });
  CHECK(kind == ErrorKind::Usage);
  CHECK_THAT(message, ContainsSubstring((dir / "out.h5").string()) && ContainsSubstring("--force"));
  CHECK(read_bytes(dir / "out.h5") == "old");

  write_file_atomically(dir / "out.h5", "new", true);
  CHECK(read_bytes(dir / "out.h5") == "new");
  CHECK(entries(dir.path()) == 1);
}

TEST_CASE("What is no regular file is not replaced, with force neither") {
  TempDir dir;
  REQUIRE(::mkfifo((dir / "pipe").c_str(), 0600) == 0);
  fs::create_symlink("/dev/null", dir / "link");
  for (const char* name : {"pipe", "link"}) {
    const auto [kind, message] = error_of([&] { AtomicFile(dir / name, true); });
    CHECK(kind == ErrorKind::Usage);
    CHECK_THAT(message, ContainsSubstring((dir / name).string()) && ContainsSubstring("is not a regular file"));
  }
  CHECK(fs::is_fifo(dir / "pipe"));
  CHECK(fs::is_symlink(dir / "link"));
  CHECK(entries(dir.path()) == 2);
}

TEST_CASE("A failed replacement keeps the old output") {
  TempDir dir;
  write_bytes(dir / "out.h5", "old");
  {
    AtomicFile file(dir / "out.h5", true);
    write_bytes(file.temporary(), "half");
  }
  CHECK(read_bytes(dir / "out.h5") == "old");
  CHECK(entries(dir.path()) == 1);
}

TEST_CASE("A file that appears during the run is not replaced without force") {
  TempDir dir;
  AtomicFile file(dir / "out.h5", false);
  write_bytes(file.temporary(), "ours");
  write_bytes(dir / "out.h5", "theirs");
  CHECK(error_of([&] { file.commit(); }).first == ErrorKind::Io);
  CHECK(read_bytes(dir / "out.h5") == "theirs");
}

TEST_CASE("A dangling link counts as an existing output") {
  TempDir dir;
  fs::create_symlink("nowhere", dir / "out.h5");
  CHECK(error_of([&] { AtomicFile(dir / "out.h5", false); }).first == ErrorKind::Usage);
}

TEST_CASE("Outputs that cannot be made are refused before any work") {
  TempDir dir;
  write_bytes(dir / "plain", "");
  fs::create_directory(dir / "folder");
  // Root may write anywhere but not below a file: that stands for a folder that cannot be written.
  const auto [missing_kind, missing] = error_of([&] { AtomicFile(dir / "none/out.h5", true); });
  CHECK(missing_kind == ErrorKind::Usage);
  CHECK_THAT(missing, ContainsSubstring("'" + (dir / "none").string() + "' does not exist"));
  CHECK(error_of([&] { AtomicFile(dir / "plain/out.h5", true); }).first == ErrorKind::Usage);
  const auto [folder_kind, folder] = error_of([&] { AtomicFile(dir / "folder", true); });
  CHECK(folder_kind == ErrorKind::Usage);
  CHECK_THAT(folder, ContainsSubstring("is a folder"));
  CHECK(error_of([&] { AtomicFile("/proc/kvq-test", true); }).first == ErrorKind::Usage);
  CHECK(entries(dir.path()) == 2);
}

TEST_CASE("A write that fails half-way is an Io error and leaves nothing") {
  TempDir dir;
  // A limit on file sizes fails a write just as a full disk does, and needs no privileges.
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit small = before;
  small.rlim_cur = 1000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto [kind, message] =
      error_of([&] { write_file_atomically(dir / "out.txt", std::string(100000, 'x'), false); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(kind == ErrorKind::Io);
  CHECK_THAT(message, ContainsSubstring((dir / "out.txt").string()));
  CHECK(entries(dir.path()) == 0);
}

TEST_CASE("Output names with spaces, a leading dash and in the working folder are written as they are") {
  TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  write_file_atomically("-a file.txt", "x", false);
  fs::current_path(before);
  CHECK(read_bytes(dir / "-a file.txt") == "x");
}
