#include "kvq-fisher/options.h"

#include <limits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/numbers.h"

#include <kvq/core/error.h>

namespace kvq::apps {

void add_options(CLI::App& command, FisherArguments& arguments) {
  add_model_options(command, arguments);
  add_device_option(command, arguments);
  command
      .add_option(
          "--text", arguments.text,
          "calibration text, [DOMAIN=]PATH: UTF-8, plain or JSONL; repeat for several, the samples are spread evenly")
      ->required()
      ->expected(1)
      ->take_all();
  command.add_option("--samples", arguments.samples, "number of sequences")
      ->check(whole_number(1, 1 << 30))
      ->capture_default_str();
  command.add_option("--seqlen", arguments.seqlen, "tokens per sequence")
      ->check(whole_number(2, 1 << 30))
      ->capture_default_str();
  command.add_flag("--sequential", arguments.sequential, "the first sequences of each text instead of a seeded choice");
  command
      .add_option("--recompute", arguments.recompute,
                  "auto (what memory allows), layer (least memory: each layer is run twice), or none (fastest)")
      ->check(CLI::IsMember({"auto", "layer", "none"}))
      ->capture_default_str();
  command.add_option("--seed", arguments.seed, "seed of the choice of sequences")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
      ->capture_default_str();
  command
      .add_option("--query-heads", arguments.query_heads,
                  "gradients over the query heads of a kv head: joint (their sum, signed), or magnitudes: mean, max")
      ->check(CLI::IsMember({"joint", "mean", "max"}))
      ->capture_default_str();
  command.add_flag("--forward-only", arguments.forward_only,
                   "no backward pass and no gradients, but key and value metrics, for recipes with metric=query and "
                   "weights=query (kvq-fit --metric query)");
  command.add_flag("--metrics", arguments.metrics,
                   "key and value metrics beside gradients (--forward-only has them anyway)");
  command.add_flag("--weights", arguments.weights,
                   "instead of keys and values: the squared gradients of the blocks' weights, for kvq-fit --weights");
  command.add_option("-o,--output", arguments.output, "calibration file to write (needed unless --dry-run)");
}

void check_kind(const FisherArguments& arguments) {
  const auto refuse = [](bool given, const char* option, const char* kind, const char* why) {
    if (given) fail(ErrorKind::Usage, fmt::format("{} does not go with {}: {}", option, kind, why));
  };
  if (arguments.weights) {
    refuse(arguments.query_heads != "joint", "--query-heads", "--weights", "a weight's gradient is one number");
    refuse(arguments.forward_only, "--forward-only", "--weights", "gradients of weights need a backward pass");
    refuse(arguments.metrics, "--metrics", "--weights", "they are of keys and values");
  }
  if (arguments.forward_only) {
    refuse(arguments.query_heads != "joint", "--query-heads", "--forward-only", "there are no gradients");
    refuse(arguments.recompute != "auto", "--recompute", "--forward-only", "no layer is run twice");
  }
}

}  // namespace kvq::apps
