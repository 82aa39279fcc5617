// A disk that fills up during a run: exit with an Io error, the journal stays, and with room again the run goes on.
#include <sys/resource.h>

#include "calib/calib_support.h"

#include <kvq/calib/journal.h>

using namespace kvq;
using namespace kvq::test;

namespace {
/// Files of this process may not grow beyond `bytes`: pwrite() fails as it does on a full disk.
void limit_files(std::uint64_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit size{bytes, bytes};
  ::setrlimit(RLIMIT_FSIZE, &size);
}
}  // namespace

TEST_CASE("A full disk while the journal is written keeps the finished sequences") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 16);
  collect(*model, windows, options_for(*model, folder / "whole.h5"));
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  const SequenceLayout layout{model->config().kv, 16};
  const int outcome = in_child([&] {
    AtStep full(2 * model->config().kv.layers,
                [&] { limit_files(static_cast<std::uint64_t>(layout.file_bytes()) / 2); });
    // From the second sequence on the disk is full; the first one is still committed, for it is already written.
    collect(*model, windows, options, full);
  });
  CHECK(outcome == kIoError);
  CHECK_FALSE(std::filesystem::exists(options.output));
  CHECK(std::filesystem::exists(Journal::folder_of(options.output)));
  CHECK(collect(*model, windows, options).resumed == 1);
  CHECK(read_bytes(options.output) == read_bytes(folder / "whole.h5"));
}

TEST_CASE("A full disk while the file is assembled keeps all sequences and leaves no half file") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 16);
  collect(*model, windows, options_for(*model, folder / "whole.h5"));
  const std::string whole = read_bytes(folder / "whole.h5");
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  for (int part = 0; part < 8; ++part) {
    const int outcome = in_child([&] {
      AtStep full(part == 0 ? 6 * model->config().kv.layers + 1 : 1,  // later ones find all sequences in the journal
                  [&] { limit_files(whole.size() * part / 8); });
      collect(*model, windows, options, full);
    });
    CHECK(outcome == kIoError);
    CHECK(entries(folder.path()) == 2);  // whole.h5 and the journal
  }
  CHECK(collect(*model, windows, options).resumed == 3);
  CHECK(read_bytes(options.output) == whole);
}
