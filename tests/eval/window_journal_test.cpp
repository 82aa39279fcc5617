#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/eval/window_journal.h>

using namespace kvq;
using kvq::test::entries;
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

TEST_CASE("A window that stands in another's place does not count") {
  TempDir dir;
  const WindowJournal journal(dir / "journal", named("same"), false);
  journal.store(3, example());
  fs::copy_file(dir / "journal/window-000003", dir / "journal/window-000004");
  CHECK_FALSE(journal.load(4, 2).has_value());
}

TEST_CASE("A damaged manifest is called so, and not taken for other settings") {
  TempDir dir;
  WindowJournal(dir / "journal", named("one"), false).store(3, example());
  const std::string good = read_bytes(dir / "journal/manifest");
  for (const std::string& bad : {good + "x", good + "\n", good.substr(0, good.size() / 2),
                                 good.substr(0, good.size() - 1), std::string("a\0b", 3), std::string()}) {
    write_bytes(dir / "journal/manifest", bad);
    try {
      const WindowJournal other(dir / "journal", named("one"), false);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Mismatch);
      CHECK_THAT(std::string(error.what()),
                 ContainsSubstring("journal/manifest' is damaged") && ContainsSubstring("--force"));
    }
  }
  CHECK_FALSE(WindowJournal(dir / "journal", named("one"), true).load(3, 2).has_value());
}

TEST_CASE("Somebody's file in a journal is named before any work; one that comes later stays, and harms nobody") {
  TempDir dir;
  WindowJournal(dir / "journal", named("same"), false).store(3, example());
  for (const char* name : {"note", "window-000003.bak"}) {
    write_bytes(dir / "journal" / name, "theirs");
    try {
      const WindowJournal journal(dir / "journal", named("same"), false);
      FAIL("no error");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      CHECK_THAT(std::string(error.what()), ContainsSubstring(std::string(name) + "' is in the way"));
    }
    CHECK(read_bytes(dir / "journal" / name) == "theirs");
    fs::remove(dir / "journal" / name);
  }
  WindowJournal journal(dir / "journal", named("same"), false);
  CHECK(journal.load(3, 2).has_value());
  write_bytes(dir / "journal/note", "theirs");
  journal.remove();
  CHECK(entries(dir / "journal") == 1);
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
