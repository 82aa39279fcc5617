#pragma once
// The commands of kvq-eval. Each adds its options to the tool and returns what runs when it was chosen.

#include <functional>

#include "common/tool.h"

namespace kvq::apps {

struct Command {
  CLI::App* app = nullptr;
  std::function<void(RunContext&)> work;
};

Command perplexity_command(Tool& tool);
Command passkey_command(Tool& tool);
Command tasks_command(Tool& tool);
Command generate_command(Tool& tool);
Command compare_command(Tool& tool);
Command inspect_command(Tool& tool);
Command experiment_command(Tool& tool);
Command search_command(Tool& tool);
Command plan_command(Tool& tool);

}  // namespace kvq::apps
