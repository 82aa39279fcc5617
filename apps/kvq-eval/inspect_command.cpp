#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "kvq-eval/commands.h"
#include "kvq-eval/inspection.h"

#include <kvq/core/hash.h>

namespace kvq::apps {

namespace {

void run(const Tool& tool, const std::filesystem::path& path, RunContext& context) {
  const ArtifactHead head = read_artifact_head(path);
  const std::string sha256 = sha256_of_file(path);
  const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  nlohmann::ordered_json json = {
      {"file", path.filename().string()}, {"kind", head.schema}, {"schema_version", head.version},
      {"producer", head.producer},        {"bytes", bytes},      {"sha256", sha256}};
  Inspection inspection;
  if (head.schema == "calibration") {
    inspection = inspect_calibration(path, json, context);
  } else if (head.schema == "thresholds") {
    inspection = inspect_thresholds(path, json);
  } else if (head.schema == "weight-fisher") {
    inspection = inspect_weight_fisher(path, json, context);
  } else if (head.schema == "weights") {
    inspection = inspect_weights(path, json, context);
  } else {
    inspection = inspect_quantizer(path, json);
  }
  json["ok"] = true;
  if (tool.common().json) return print_result(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));

  std::vector<std::pair<std::string, std::string>> facts = {
      {"file", fmt::format("{}, {}", path.filename().string(), human_bytes(static_cast<double>(bytes)))},
      {"kind", fmt::format("{} {}, by {}", head.schema, head.version, head.producer)},
      {"sha256", sha256}};
  facts.insert(facts.end(), inspection.facts.begin(), inspection.facts.end());
  std::size_t width = 0;
  for (const auto& [name, value] : facts) width = std::max(width, name.size());
  std::string text;
  for (const auto& [name, value] : facts) {
    text += fmt::format("{:<{}}  ", name, width);
    for (const char byte : value) text += byte == '\n' ? "\n" + std::string(width + 2, ' ') : std::string(1, byte);
    text += '\n';
  }
  for (const Table& table : inspection.tables) text += "\n" + to_text(table);
  print_result(text +
               "\nThe file is complete, and everything in it was read and checked for what it can be (numbers have no "
               "checksums).");
}

}  // namespace

Command inspect_command(Tool& tool) {
  auto file = std::make_shared<std::filesystem::path>();
  CLI::App* command = tool.app().add_subcommand("inspect", "What one of our files holds, and whether it is sound");
  command->add_option("file", *file, "calibration, thresholds, quantizer, weight Fisher or weights")->required();
  tool.add_common(*command, {.force = false, .dry_run = false});
  return {command, [&tool, file](RunContext& context) { run(tool, *file, context); }};
}

}  // namespace kvq::apps
