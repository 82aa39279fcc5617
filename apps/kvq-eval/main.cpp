// kvq-eval: what does a quantized cache cost on this model and this text?

#include <vector>

#include <CLI/CLI.hpp>

#include "common/tool.h"
#include "kvq-eval/commands.h"

int main(int argc, char** argv) {
  kvq::apps::Tool tool("kvq-eval", "Judges quantized KV caches against the unquantized one.");
  tool.app().require_subcommand(1);
  const std::vector<kvq::apps::Command> commands = {
      kvq::apps::perplexity_command(tool), kvq::apps::passkey_command(tool), kvq::apps::tasks_command(tool),
      kvq::apps::generate_command(tool),   kvq::apps::compare_command(tool), kvq::apps::inspect_command(tool),
      kvq::apps::experiment_command(tool), kvq::apps::search_command(tool),  kvq::apps::plan_command(tool)};
  return tool.run(argc, argv, [&](kvq::RunContext& context) {
    for (const kvq::apps::Command& command : commands) {
      if (tool.app().got_subcommand(command.app)) command.work(context);
    }
  });
}
