#include "common/child_process.h"

#include <cerrno>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fmt/format.h>

#include <kvq/core/error.h>

namespace kvq::apps {

namespace {

constexpr int kCannotStart = 127;

/// Between fork and exec only calls that are safe in a process with threads.
[[noreturn]] void become(const char* program, char* const* arguments, pid_t parent) {
  // In a group of its own: an interrupt from the terminal reaches us, and we tell the child, once.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(kCannotStart);  // it was gone before we asked
  const int nowhere = open("/dev/null", O_RDWR);
  if (nowhere >= 0) {
    dup2(nowhere, STDIN_FILENO);
    dup2(nowhere, STDOUT_FILENO);
  }
  signal(SIGINT, SIG_DFL);
  signal(SIGTERM, SIG_DFL);
  execv(program, arguments);
  _exit(kCannotStart);
}

}  // namespace

std::filesystem::path sibling_tool(const std::string& name) {
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  if (access(path.c_str(), X_OK) != 0)
    fail(ErrorKind::Input, fmt::format("{} is needed, but is not beside this program ({})", name, path.string()));
  return path;
}

int run_child(const std::filesystem::path& program, const std::vector<std::string>& arguments,
              const CancelToken& cancel) {
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);

  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail(ErrorKind::Io, fmt::format("{} cannot be started: {}", program.string(), std::strerror(errno)));
  if (child == 0) become(words[0].c_str(), pointers.data(), parent);
  bool told = false;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code == kCannotStart) fail(ErrorKind::Io, fmt::format("{} cannot be started", program.string()));
      return code;
    }
    if (ended < 0 && errno != EINTR)
      fail(ErrorKind::Io, fmt::format("{} was lost: {}", program.string(), std::strerror(errno)));
    if (cancel.cancelled() && !told) {
      kill(child, SIGTERM);
      told = true;
    }
    const timespec pause{0, 20'000'000};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace kvq::apps
