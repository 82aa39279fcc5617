#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "common/numbers.h"
#include "kvq-eval/commands.h"

#include <kvq/artifacts/quantizer_file.h>
#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/core/shortened.h>
#include <kvq/eval/context_plan.h>
#include <kvq/model/config.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/report/table.h>

namespace kvq::apps {

namespace {

using Json = nlohmann::ordered_json;

struct PlanOptions {
  std::filesystem::path model;
  std::string shape;
  std::vector<std::filesystem::path> quantizers;
  std::vector<std::string> recipes;
  std::vector<std::int64_t> lengths = {4096, 32768, 131072};
  std::vector<std::int64_t> memories;
  std::optional<std::int64_t> weights;
  std::int64_t batch = 1;
};

struct Planned {
  std::string name;
  Quantizer quantizer;
};

/// "32,8,128": layers, kv heads, head_dim.
KvShape parse_shape(const std::string& text) {
  std::array<int, 3> numbers{};
  const char *at = text.data(), *end = text.data() + text.size();
  bool whole = true;
  for (std::size_t index = 0; index < numbers.size() && whole; ++index) {
    const auto [next, error] = std::from_chars(at, end, numbers[index]);
    whole = error == std::errc() && numbers[index] >= 1 && numbers[index] <= 65536 &&
            (index + 1 < numbers.size() ? next != end && *next == ',' : next == end);
    at = whole && next != end ? next + 1 : next;
  }
  if (!whole) {
    fail(ErrorKind::Usage,
         fmt::format("--shape {}: three numbers from 1 to 65536 are needed, LAYERS,KV_HEADS,HEAD_DIM, "
                     "such as 32,8,128",
                     shortened(text)));
  }
  if (numbers[2] % 2 != 0) {
    fail(ErrorKind::Usage, fmt::format("--shape {}: HEAD_DIM must be even: RoPE turns pairs of channels", text));
  }
  return {numbers[0], numbers[1], numbers[1], numbers[2]};
}

bool same_cache(const KvShape& a, const KvShape& b) {
  return a.layers == b.layers && a.kv_heads == b.kv_heads && a.head_dim == b.head_dim;
}

std::string shape_words(const KvShape& shape) {
  return fmt::format("{} layers, {} kv heads of {}", shape.layers, shape.kv_heads, shape.head_dim);
}

std::vector<Planned> rows_of(const PlanOptions& options, const KvShape& shape, const ModelRope& rope) {
  std::vector<Planned> rows;
  rows.push_back({"none", uncalibrated_quantizer(parse_recipe("none"), shape)});
  for (const auto& path : options.quantizers) {
    Quantizer quantizer = read_quantizer(path).quantizer;
    if (!same_cache(quantizer.shape, shape)) {
      fail(ErrorKind::Mismatch, fmt::format("--quantizer {}: is for {}, not for {}", path.string(),
                                            shape_words(quantizer.shape), shape_words(shape)));
    }
    rows.push_back({short_form(quantizer.recipe), std::move(quantizer)});
  }
  std::vector<Recipe> recipes;
  for (const std::string& text : options.recipes) {
    const Recipe recipe = resolve_recipe(text);
    if (std::count(recipes.begin(), recipes.end(), recipe) > 0)
      fail(ErrorKind::Usage, fmt::format("--recipe {} is given twice", text));
    recipes.push_back(recipe);
    check_local_layers(recipe, rope);
    if (recipe.is_oracle())
      fail(ErrorKind::Usage, fmt::format("--recipe {}: {}=window is no cache: nothing is counted of it", text,
                                         recipe.tiers.oracle() ? "by" : "range"));
    rows.push_back({short_form(recipe), uncalibrated_quantizer(recipe, shape)});
  }
  return rows;
}

std::string tokens_text(std::int64_t tokens) {
  return tokens >= kLongestContext ? fmt::format(">{}", kLongestContext) : fmt::format("{}", tokens);
}

void run(const Tool& tool, const PlanOptions& options) {
  if (options.model.empty() == options.shape.empty())
    fail(ErrorKind::Usage, "give either --model or --shape LAYERS,KV_HEADS,HEAD_DIM");
  if (options.weights && options.memories.empty())
    fail(ErrorKind::Usage, "--weights-bytes is what the weights take of a --memory, and none is given");
  refuse_repeats("--lengths", options.lengths);
  refuse_repeats("--memory", options.memories);
  refuse_repeats("--quantizer", options.quantizers);
  KvShape shape;
  ModelRope rope;
  std::int64_t weights = options.weights.value_or(0);
  if (options.model.empty()) {
    shape = parse_shape(options.shape);
  } else {
    const ModelConfig config = read_model_config(options.model);
    shape = config.kv;
    rope = config.rope;
    if (!options.weights) weights = 2 * config.parameters;  // 16 bits each
  }
  for (const std::int64_t memory : options.memories) {
    if (memory <= weights) {
      fail(ErrorKind::Usage,
           fmt::format("--memory {}: the weights alone take {}", human_bytes(static_cast<double>(memory)),
                       human_bytes(static_cast<double>(weights))));
    }
  }
  const std::vector<Planned> rows = rows_of(options, shape, rope);

  Table table{{"cache", "bits"}, {}};
  for (const std::int64_t length : options.lengths) {
    table.header.push_back(fmt::format("counted at {}", length));
    table.header.push_back(fmt::format("bytes at {}", length));
  }
  for (const std::int64_t memory : options.memories)
    table.header.push_back(fmt::format("tokens in {}", human_bytes(static_cast<double>(memory))));
  Json json = {{"layers", shape.layers}, {"kv_heads", shape.kv_heads}, {"head_dim", shape.head_dim},
               {"batch", options.batch}, {"weights_bytes", weights},   {"rows", Json::array()}};
  for (const Planned& row : rows) {
    std::vector<std::string> cells = {row.name,
                                      fmt::format("{:.4g}", nominal_bits(row.quantizer.recipe, shape.head_dim))};
    Json lengths = Json::array(), longest = Json::array();
    for (const std::int64_t length : options.lengths) {
      const Footprint one = forecast_footprint(row.quantizer, length);
      const double bits = one.bits_per_value(shape, length);
      cells.push_back(fmt::format("{:.2f}", bits));
      cells.push_back(human_bytes(static_cast<double>(one.total()) * static_cast<double>(options.batch)));
      lengths.push_back({{"tokens", length}, {"bits_counted", bits}, {"bytes", one.total() * options.batch}});
    }
    for (const std::int64_t memory : options.memories) {
      const std::int64_t tokens = longest_context(row.quantizer, memory - weights, options.batch);
      cells.push_back(tokens_text(tokens));
      longest.push_back({{"memory", memory}, {"tokens", tokens}});
    }
    table.rows.push_back(cells);
    json["rows"].push_back({{"name", row.name},
                            {"bits_nominal", nominal_bits(row.quantizer.recipe, shape.head_dim)},
                            {"lengths", lengths},
                            {"longest", longest}});
  }
  if (tool.common().json) return print_result(json.dump(2));
  std::string text = to_text(table) + fmt::format("\n{}", shape_words(shape));
  if (options.batch > 1) text += fmt::format(", {} sequences of each length", options.batch);
  if (!options.memories.empty())
    text += weights > 0 ? fmt::format("; beside {} of weights", human_bytes(static_cast<double>(weights)))
                        : "; nothing but caches in the memory (--weights-bytes)";
  print_result(text);
}

}  // namespace

Command plan_command(Tool& tool) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command =
      tool.app().add_subcommand("plan", "Bytes of caches at any length, and the longest context that fits in a memory");
  command->add_option("--model", options->model, "GGUF file or Hugging Face folder, for its shape");
  command->add_option("--shape", options->shape, "LAYERS,KV_HEADS,HEAD_DIM of a model that is not here");
  command->add_option("--quantizer", options->quantizers, "quantizer from kvq-fit; repeat for several")
      ->expected(1)
      ->take_all();
  command
      ->add_option("--recipe", options->recipes,
                   "a recipe without a quantizer: as many exact values as it asks for; repeat for several")
      ->expected(1)
      ->take_all();
  command->add_option("--lengths", options->lengths, "tokens of a sequence, separated by commas")
      ->delimiter(',')
      ->check(whole_number(1, std::uint64_t{1} << 40))
      ->capture_default_str();
  command->add_option("--memory", options->memories, "memories to fill, separated by commas: 80GB, 141GB, 24GiB")
      ->delimiter(',')
      ->transform(byte_size());
  command
      ->add_option("--weights-bytes", options->weights,
                   "what the weights take of it; without: 2 bytes for each parameter of --model")
      ->transform(byte_size());
  command->add_option("--batch", options->batch, "sequences at the same time")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  tool.add_common(*command, {.force = false, .dry_run = false});
  return {command, [&tool, options](RunContext&) { run(tool, *options); }};
}

}  // namespace kvq::apps
