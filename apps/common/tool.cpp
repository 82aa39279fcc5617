#include "common/tool.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/config_file.h"
#include "common/message.h"
#include "common/numbers.h"
#include "common/paths.h"
#include "common/settings.h"
#include "common/terminal.h"

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/core/shortened.h>

namespace kvq::apps {

namespace {

CancelToken& cancel_token() {
  static CancelToken token;
  return token;
}

// The first signal asks politely (work stops at the next step and keeps what can be resumed), the second ends at once.
void on_signal(int) {
  if (cancel_token().cancelled()) std::_Exit(130);
  cancel_token().cancel();
}

/// A file that is opened where a standard stream is closed would get that stream's number, and what is printed would go
/// into the file.
void occupy_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // Read-only, for what is written there to be an error as it is with a closed stream.
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) ::open("/dev/null", O_RDONLY);
  }
}

/// Flushes stdout. Throws Io when it cannot be written; a reader that went away (`| head`) is no failure of ours.
void finish_output() {
  std::cout.flush();
  if (!std::cout && errno != EPIPE) {
    fail(ErrorKind::Io,
         fmt::format("standard output cannot be written: {}", errno ? std::strerror(errno) : "unknown reason"));
  }
}

}  // namespace

struct Tool::Impl {
  std::string name;
  CLI::App app;
  std::shared_ptr<TomlConfig> config = std::make_shared<TomlConfig>(app);
  CommonOptions common;
  CLI::App* command = nullptr;  ///< the subcommand that was chosen, or the app itself
};

Tool::Tool(std::string name, std::string description) : impl_(std::make_unique<Impl>()) {
  impl_->name = name;
  impl_->app.name(std::move(name));
  impl_->app.description(std::move(description));
  impl_->app.set_version_flag("--version", std::string(KVQ_VERSION));
  impl_->app.set_config("--config", "", "TOML file with the same options; the command line wins")
      ->check([](const std::string& file) {  // before it is opened, which would wait for a pipe
        std::error_code error;
        const auto status = std::filesystem::status(file, error);
        const bool odd = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
                         !std::filesystem::is_directory(status);
        return odd ? fmt::format("'{}' is not a regular file (a pipe or a device?)", file) : std::string();
      });
  impl_->app.config_formatter(impl_->config);
  impl_->app.fallthrough();  // `kvq-eval perplexity --config FILE`: also behind the subcommand
  impl_->app.get_formatter()->column_width(34);
}
Tool::~Tool() = default;

CLI::App& Tool::app() { return impl_->app; }
const CommonOptions& Tool::common() const { return impl_->common; }

void Tool::add_common(CLI::App& command, Features features) {
  CommonOptions& options = impl_->common;
  const std::string group = "Common options";
  if (features.json) command.add_flag("--json", options.json, "print one JSON object on stdout")->group(group);
  if (features.force) command.add_flag("--force", options.force, "replace output that exists")->group(group);
  if (features.dry_run) command.add_flag("--dry-run", options.dry_run, "print the plan and stop")->group(group);
  command.add_option("--threads", options.threads, "threads (default: all cores this process may use)")
      ->check(whole_number(1, 1024))
      ->group(group);
  command.add_flag("-q,--quiet", options.quiet, "no progress, no information; warnings and errors only")->group(group);
  command.add_flag("-v,--verbose", options.verbosity, "say more; repeat for even more")->group(group);
  if (&command != &impl_->app)
    command.footer("--config FILE.toml: the same options from a file; the command line wins");
  command.add_option("--log-file", options.log_file, "also write the log, at full detail, to this file")->group(group);
}

namespace {

/// An empty value is a slip (an unset shell variable), never a wish.
void refuse_empty_values(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_min() == 0) continue;  // a flag
    for (const std::string& value : option->results()) {
      if (value.empty()) throw CLI::ValidationError(option->get_name(), "its value is empty");
    }
  }
}

/// Checks of options quote a value whole, whatever its length.
std::string with_short_values(const CLI::App& app, std::string problem) {
  std::vector<const CLI::App*> commands = {&app};
  for (const CLI::App* command : app.get_subcommands()) commands.push_back(command);
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& value : option->results()) {
        const std::string quoted = shortened(value);
        const std::size_t at = quoted == value ? std::string::npos : problem.find(value);
        if (at != std::string::npos) problem.replace(at, value.size(), quoted);
      }
    }
  }
  return problem;
}

/// CLI11 takes letters that are options off a word of one dash: "-q.h5" becomes "-q" and "-.h5".
std::string as_typed(const std::string& left, int argc, char** argv) {
  const std::string_view end = std::string_view(left).substr(1);
  for (int index = 1; index < argc; ++index) {
    const std::string_view word = argv[index];
    if (word == left) return left;
    if (word.size() > left.size() && word[0] == '-' && word[1] != '-' && word.ends_with(end)) return std::string(word);
  }
  return left;
}

/// CLI11 says of a command that does not exist only that one is required.
std::string parse_problem(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const std::vector<const CLI::App*> commands = app.get_subcommands([](const CLI::App*) { return true; });
  const std::vector<std::string> unknown = app.remaining(true);
  // A misspelt option matters more than the one that is missing because of it.
  for (const std::string& word : unknown) {
    if (word.size() < 2 || word[0] != '-') continue;
    const std::string command = app.get_subcommands().empty()
                                    ? app.get_name()
                                    : app.get_name() + " " + app.get_subcommands().front()->get_name();
    const std::string typed = as_typed(word.substr(0, word.find('=')), argc, argv);
    return fmt::format("'{}' is not an option of {}{}", shortened(typed), command,
                       typed.find('.') == std::string::npos ? "" : fmt::format("; a file: ./{}", shortened(typed)));
  }
  if (commands.empty() || !app.get_subcommands().empty() || unknown.empty()) {
    return dynamic_cast<const CLI::ExtrasError*>(&error) && !unknown.empty()
               ? fmt::format("'{}' is not expected", shortened(unknown.front()))
               : with_short_values(app, error.what());
  }
  std::string list;
  for (const CLI::App* command : commands) list += (list.empty() ? "" : ", ") + command->get_name();
  return fmt::format("'{}' is not a command; known: {}", shortened(unknown.front()), list);
}

/// "kvq-eval perplexity": whose --help says more. A refusal may have come before CLI11 read any word.
std::string asked_command(const CLI::App& app, int argc, char** argv) {
  for (int index = 1; index < argc; ++index) {
    const auto named = [&](const CLI::App* command) { return command->get_name() == argv[index]; };
    if (!app.get_subcommands(named).empty()) return app.get_name() + " " + argv[index];
  }
  return app.get_name();
}

/// CLI11 takes `--text=` for `--text` and eats the next argument as its value.
void refuse_bare_equals(int argc, char** argv) {
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index];
    if (argument.size() > 3 && argument.rfind("--", 0) == 0 && argument.find('=') == argument.size() - 1) {
      throw CLI::ValidationError(argument.substr(0, argument.size() - 1), "its value is empty");
    }
  }
}

/// CLI11 leaves out what stands between two commas if nothing does.
void refuse_empty_items(const CLI::App& command, int argc, char** argv) {
  for (int index = 1; index < argc; ++index) {
    const std::string argument = argv[index], name = argument.substr(0, argument.find('='));
    const CLI::Option* option = name.rfind("--", 0) == 0 ? command.get_option_no_throw(name) : nullptr;
    if (!option || option->get_delimiter() != ',') continue;
    const std::string list = name != argument   ? argument.substr(name.size() + 1)
                             : index + 1 < argc ? argv[index + 1]
                                                : "";
    if (("," + list + ",").find(",,") != std::string::npos)
      throw CLI::ValidationError(name, fmt::format("'{}' has an empty place", shortened(list)));
  }
}

}  // namespace

int Tool::run(int argc, char** argv, const std::function<void(RunContext&)>& work) {
  Impl& self = *impl_;
  occupy_standard_streams();
  try {
    refuse_bare_equals(argc, argv);
    self.app.parse(argc, argv);
    refuse_empty_values(self.app);
    refuse_empty_items(self.app, argc, argv);
    for (const CLI::App* command : self.app.get_subcommands()) {
      refuse_empty_values(*command);
      refuse_empty_items(*command, argc, argv);
    }
  } catch (const CLI::Success& success) {  // --help, --version
    std::signal(SIGPIPE, SIG_IGN);
    errno = 0;
    const int code = self.app.exit(success, std::cout, std::cerr);
    try {
      finish_output();
    } catch (const Error& error) {
      std::cerr << fmt::format("{}: {}\n", self.name, error.what());
      return exit_code(error.kind());
    }
    return code;
  } catch (const CLI::ParseError& error) {
    std::cerr << fmt::format("{}: {}\nTry '{} --help'.\n", self.name,
                             printable_message(self.config->with_place(parse_problem(self.app, error, argc, argv))),
                             asked_command(self.app, argc, argv));
    return 2;
  }
  self.command = self.app.get_subcommands().empty() ? &self.app : self.app.get_subcommands().front();
  if (self.common.threads == 0) self.common.threads = available_cores();

  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a file that grows beyond `ulimit -f` is a failed write, not a killed program

  std::string message;
  int code = 0;
  try {
    const std::vector<NamedPath> inputs = input_paths(self.app, *self.command);
    check_inputs(inputs);
    std::vector<NamedPath> not_for_logs = inputs;
    if (const CLI::Option* output = self.command->get_option_no_throw("--output"); output && output->count() > 0) {
      apps::check_output("-o", output->as<std::string>(), inputs);
      not_for_logs.push_back({"-o", output->as<std::string>()});
    }
    if (!self.common.log_file.empty()) check_log_file(self.common.log_file, not_for_logs);
    Terminal terminal(self.name, self.common);
    RunContext context{terminal.log(), terminal.progress(), cancel_token(), self.common.threads};
    try {
      context.log.debug("settings:\n" + resolved_config());
      work(context);
    } catch (const Error& error) {
      code = exit_code(error.kind());
      message = printable_message(self.config->with_place(error.what()));
    } catch (const std::bad_alloc&) {
      code = 1;
      message = "out of memory";
    } catch (const std::filesystem::filesystem_error& error) {
      // Names that lead nowhere are bad input; everything else is the disk's trouble.
      const bool bad_name = error.code() == std::errc::too_many_symbolic_link_levels ||
                            error.code() == std::errc::filename_too_long || error.code() == std::errc::not_a_directory;
      code = bad_name ? 2 : 1;
      message = fmt::format("{}: {}", error.path1().string(), error.code().message());
    } catch (const std::exception& error) {
      code = 1;
      message = error.what();
      // libtorch reports a failed allocation with a text of many lines; its first line says what matters.
      if (const auto end = message.find('\n'); end != std::string::npos && self.common.verbosity == 0)
        message.resize(end);
    }
    terminal.progress().end();
    if (code != 0) terminal.error(message);
  } catch (const Error& error) {  // a path is wrong, or the log file cannot be opened
    std::cerr << fmt::format("{}: {}\n", self.name, printable_message(self.config->with_place(error.what())));
    return exit_code(error.kind());
  }
  return code;
}

void Tool::check_output(const std::filesystem::path& output) const {
  apps::check_output("-o", output, input_paths(impl_->app, *impl_->command));
}

std::string Tool::resolved_config() const { return settings_as_toml(*impl_->command); }

std::string Tool::command_line() const { return command_as_text(impl_->name, *impl_->command); }

std::string Tool::producer() const { return impl_->name + " " KVQ_VERSION; }

void print_result(const std::string& text) {
  errno = 0;
  std::cout << text;
  if (text.empty() || text.back() != '\n') std::cout << '\n';
  finish_output();
}

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 999.5 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 || bytes >= 99.5 ? fmt::format("{:.0f} {}", bytes, units[unit])
                                    : fmt::format("{:.1f} {}", bytes, units[unit]);
}

std::string human_memory(std::int64_t bytes, std::int64_t device_bytes) {
  const std::string text = human_bytes(static_cast<double>(bytes));
  return device_bytes == 0
             ? text
             : fmt::format("{} of the GPU, {} of the machine", human_bytes(static_cast<double>(device_bytes)), text);
}

std::string human_seconds(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<long>(std::lround(seconds));
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{}:{:02} min", whole / 60, whole % 60);
  return fmt::format("{}:{:02} h", whole / 3600, whole % 3600 / 60);
}

}  // namespace kvq::apps
