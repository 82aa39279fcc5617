#include "kvq-fisher/report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/tool.h"

#include <kvq/core/plural.h>

namespace kvq::apps {

namespace {

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double total_seconds(const CollectResult& result) {
  return result.compute_seconds + result.statistics_seconds + result.journal_seconds + result.assemble_seconds;
}

/// Tokens that this run worked on, those of resumed sequences left out.
double computed_tokens(const FisherArguments& arguments, const CollectResult& result) {
  return static_cast<double>((static_cast<std::int64_t>(result.loss.size()) - result.resumed) * arguments.seqlen);
}

}  // namespace

std::string plan_as_json(std::int64_t tokens, const CollectPlan* plan) {
  nlohmann::ordered_json json = {{"tokens", tokens}, {"plan", nullptr}};
  if (plan) {
    json["plan"] = {{"sequences", plan->sequences},
                    {"seqlen", plan->seqlen},
                    {"file_bytes", plan->file_bytes},
                    {"journal_bytes", plan->journal_bytes},
                    {"memory_bytes", plan->peak_memory_bytes},
                    {"device_memory_bytes", plan->device_memory_bytes},
                    {"seconds", std::round(plan->seconds)}};
  }
  return json.dump(2);
}

std::string plan_as_text(std::int64_t tokens, const ModelConfig& config, const CollectPlan& plan) {
  const KvShape& shape = config.kv;
  std::string text = fmt::format("text      {}\n", plural(tokens, "token"));
  text += fmt::format("sample    {} of {}\n", plural(plan.sequences, "sequence"), plural(plan.seqlen, "token"));
  text += fmt::format("cache     {}, {} of {}\n", plural(shape.layers, "layer"), plural(shape.kv_heads, "kv head"),
                      shape.head_dim);
  text += fmt::format("file      {} before compression\n", human_bytes(static_cast<double>(plan.file_bytes)));
  text += fmt::format("journal   {} while it runs\n", human_bytes(static_cast<double>(plan.journal_bytes)));
  text += fmt::format("memory    about {}\n", human_memory(plan.peak_memory_bytes, plan.device_memory_bytes));
  text += fmt::format("time      about {}\n", human_seconds(plan.seconds));
  return text;
}

std::string result_as_json(const FisherArguments& arguments, const CollectResult& result) {
  const double seconds = total_seconds(result);
  return nlohmann::ordered_json(
             {{"output", arguments.output.string()},
              {"sequences", result.loss.size()},
              {"seqlen", arguments.seqlen},
              {"resumed", result.resumed},
              {"loss", mean(result.loss)},
              {"sequence_loss", result.loss},
              {"file_bytes", result.file_bytes},
              {"seconds", seconds},
              {"compute_seconds", result.compute_seconds},
              {"statistics_seconds", result.statistics_seconds},
              {"journal_seconds", result.journal_seconds},
              {"assemble_seconds", result.assemble_seconds},
              {"tokens_per_second", seconds > 0 ? computed_tokens(arguments, result) / seconds : 0.0}})
      .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string result_as_text(const FisherArguments& arguments, const CollectResult& result) {
  const double seconds = total_seconds(result), loss = mean(result.loss);
  std::string text =
      fmt::format("{}: {} of {}, {}\n", arguments.output.string(), plural(result.loss.size(), "sequence"),
                  plural(arguments.seqlen, "token"), human_bytes(static_cast<double>(result.file_bytes)));
  text += fmt::format("mean loss {:.4f} nats (perplexity {:.2f})\n", loss, std::exp(loss));
  const std::string resumed =
      result.resumed > 0 ? fmt::format("{} from an earlier run", plural(result.resumed, "sequence")) : "";
  if (seconds > 0) {
    const auto share = [&](double part) { return 100 * part / seconds; };
    text +=
        fmt::format("{}, {:.0f} tokens/s; gradients {:.0f} %, statistics {:.0f} %, journal {:.0f} %, file {:.0f} %",
                    human_seconds(seconds), computed_tokens(arguments, result) / seconds, share(result.compute_seconds),
                    share(result.statistics_seconds), share(result.journal_seconds), share(result.assemble_seconds));
  }
  return text + (seconds > 0 && !resumed.empty() ? "; " : "") + resumed;
}

}  // namespace kvq::apps
