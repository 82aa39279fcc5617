#include "support/catch.h"
#include "support/temp_dir.h"

#include <cstring>

#include <kvq/core/error.h>
#include <kvq/core/mapped_file.h>

using namespace kvq;
using kvq::test::TempDir;
using kvq::test::write_bytes;

namespace {
std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}
}  // namespace

TEST_CASE("A mapped file shows the file's bytes, also after a move") {
  TempDir dir;
  write_bytes(dir / "a", std::string("one\0two", 7));
  write_bytes(dir / "b", "other");
  MappedFile first(dir / "a");
  CHECK(text_of(first) == std::string("one\0two", 7));
  MappedFile second(std::move(first));
  CHECK(text_of(second) == std::string("one\0two", 7));
  CHECK(first.bytes().empty());
  second = MappedFile(dir / "b");
  CHECK(text_of(second) == "other");
  CHECK(second.path() == dir / "b");
}

TEST_CASE("An empty file maps to no bytes") {
  TempDir dir;
  write_bytes(dir / "empty", "");
  CHECK(MappedFile(dir / "empty").bytes().empty());
}

TEST_CASE("Released parts read the same again") {
  TempDir dir;
  std::string content(64 << 10, 'x');
  for (std::size_t index = 0; index < content.size(); ++index) content[index] = static_cast<char>(index * 31 >> 3);
  write_bytes(dir / "large", content);
  const MappedFile file(dir / "large");
  file.release(file.bytes());
  file.release(file.bytes().subspan(100, 20000));
  file.release(file.bytes().subspan(5, 3));
  CHECK(text_of(file) == content);
}

TEST_CASE("What cannot be mapped is an Input error that names the path and the reason") {
  TempDir dir;
  const auto refused = [&](const std::filesystem::path& path, const std::string& reason) {
    try {
      MappedFile file(path);
      FAIL("no error for " << path);
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Input);
      CHECK_THAT(std::string(error.what()), ContainsSubstring(path.string()) && ContainsSubstring(reason));
    }
  };
  refused(dir / "none", "No such file");
  refused(dir.path(), "is a folder");
  refused("/dev/null", "not a regular file");
}
