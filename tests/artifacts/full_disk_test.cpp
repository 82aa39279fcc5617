// Writing stops with one Io error and leaves nothing behind, wherever the disk fills up; the process goes on and ends
// well. A file-size limit stands for the full disk: the same failing pwrite(), without being root.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <iostream>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

namespace {

enum Outcome { kWritten = 0, kIoError = 10, kOtherError = 11 };

/// Runs `work` in a child process whose files may not grow beyond `limit` bytes. The exit handlers run too: HDF5's must
/// not get stuck on what could not be written.
int with_limit(std::uint64_t limit, const std::function<void()>& work) {
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit size{limit, limit};
    ::setrlimit(RLIMIT_FSIZE, &size);
    int outcome = kWritten;
    try {
      work();
    } catch (const Error& error) {
      outcome = error.kind() == ErrorKind::Io ? kIoError : kOtherError;
    } catch (...) {
      outcome = kOtherError;
    }
    std::exit(outcome);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("A disk that fills up at any point of writing is an Io error that leaves nothing behind") {
  TempDir folder;
  const auto path = folder / "x.h5";
  const CalibrationHeader header = sample_calibration_header(2, 2000);
  const std::function<void()> writers[] = {[&] { write_quantizer(path, sample_quantizer(), false); },
                                           [&] { write_thresholds(path, sample_thresholds(), false); },
                                           [&] { write_sample_calibration(path, header); }};
  for (const auto& write : writers) {
    write();
    const auto size = static_cast<std::uint64_t>(std::filesystem::file_size(path));
    std::filesystem::remove(path);
    for (int part = 0; part < 24; ++part) {
      CHECK(with_limit(size * part / 24, write) == kIoError);
      CHECK(entries(folder.path()) == 0);
    }
    CHECK(with_limit(size - 1, write) == kIoError);
    CHECK(entries(folder.path()) == 0);
    CHECK(with_limit(size + (1 << 20), write) == kWritten);  // HDF5 reserves some room for metadata and gives it back
    std::filesystem::remove(path);
  }
}
