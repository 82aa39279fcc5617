#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/eval/window_journal.h>

using namespace kvq;
using kvq::test::read_bytes;
using kvq::test::TempDir;
using kvq::test::write_bytes;
namespace fs = std::filesystem;

namespace {

std::vector<WindowRecord> example() {
  return {{{3.25, {0.0f, 0.0f, 0.0f}, 3}, 4096, 0.5}, {{3.5, {0.125f, 1e-6f, 7.0f}, 2}, 1024, 0.75}};
}

void check_equal(const std::vector<WindowRecord>& a, const std::vector<WindowRecord>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t variant = 0; variant < a.size(); ++variant) {
    CHECK(a[variant].comparison.nll == b[variant].comparison.nll);
    CHECK(a[variant].comparison.kl == b[variant].comparison.kl);
    CHECK(a[variant].comparison.same_top1 == b[variant].comparison.same_top1);
    CHECK(a[variant].cache_bytes == b[variant].cache_bytes);
    CHECK(a[variant].seconds == b[variant].seconds);
  }
}

RunIdentity named(const std::string& name) { return {{{"name", name}}}; }

/// The one file of window 3.
fs::path window_file(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().find("window") != std::string::npos) return entry.path();
  }
  FAIL("no window was stored");
  return {};
}

}  // namespace

TEST_CASE("A stored window is given back by another journal of the same identity") {
  TempDir dir;
  WindowJournal(dir / "journal", named("same"), false).store(3, example());
  const WindowJournal again(dir / "journal", named("same"), false);
  const auto known = again.load(3, 2);
  REQUIRE(known.has_value());
  check_equal(*known, example());
  CHECK_FALSE(again.load(2, 2).has_value());
}

TEST_CASE("A journal of other settings is refused with what differs, and thrown away only on demand") {
  TempDir dir;
  WindowJournal(dir / "journal", named("one"), false).store(3, example());
  try {
    const WindowJournal other(dir / "journal", named("two"), false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Mismatch);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("name: one there, two now"));
    CHECK_THAT(std::string(error.what()), ContainsSubstring("--force"));
  }
  CHECK(WindowJournal(dir / "journal", named("one"), false).load(3, 2).has_value());
  CHECK_FALSE(WindowJournal(dir / "journal", named("two"), true).load(3, 2).has_value());
}

TEST_CASE("A journal in use is refused; one without a finished window leaves nothing behind") {
  TempDir dir;
  {
    const WindowJournal first(dir / "journal", named("one"), false);
    try {
      const WindowJournal second(dir / "journal", named("one"), false);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Io);
      CHECK_THAT(std::string(error.what()), ContainsSubstring("another run"));
    }
    CHECK(fs::exists(dir / "journal"));
  }
  CHECK_FALSE(fs::exists(dir / "journal"));
}

TEST_CASE("A window of another number of caches does not count") {
  TempDir dir;
  const WindowJournal journal(dir / "journal", named("same"), false);
  journal.store(3, example());
  CHECK_FALSE(journal.load(3, 1).has_value());
  CHECK_FALSE(journal.load(3, 3).has_value());
}

TEST_CASE("A damaged window counts as not finished, wherever the damage is") {
  TempDir dir;
  const WindowJournal journal(dir / "journal", named("same"), false);
  journal.store(3, example());
  const fs::path file = window_file(dir / "journal");
  const std::string good = read_bytes(file);
  for (std::size_t position = 0; position < good.size(); ++position) {
    std::string bad = good;
    bad[position] = static_cast<char>(bad[position] ^ 1);
    write_bytes(file, bad);
    INFO("flipped byte " << position);
    CHECK_FALSE(journal.load(3, 2).has_value());
    write_bytes(file, good.substr(0, position));
    INFO("cut at " << position);
    CHECK_FALSE(journal.load(3, 2).has_value());
  }
  write_bytes(file, good + "x");
  CHECK_FALSE(journal.load(3, 2).has_value());
  write_bytes(file, good);
  CHECK(journal.load(3, 2).has_value());
}

TEST_CASE("A finished run removes its journal") {
  TempDir dir;
  WindowJournal journal(dir / "journal", named("same"), false);
  journal.store(3, example());
  journal.remove();
  CHECK_FALSE(fs::exists(dir / "journal"));
}

TEST_CASE("A journal that cannot be made is an Io error that names it") {
  TempDir dir;
  write_bytes(dir / "file", "");
  try {
    WindowJournal(dir / "file/journal", named("x"), false);
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Io);
    CHECK_THAT(std::string(error.what()), ContainsSubstring("file/journal"));
  }
}
