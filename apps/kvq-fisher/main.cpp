// kvq-fisher: keys, values and their loss gradients, or metrics, of a calibration sample.

#include "common/tool.h"
#include "kvq-fisher/inputs.h"
#include "kvq-fisher/options.h"
#include "kvq-fisher/report.h"

#include <kvq/calib/collect_weights.h>
#include <kvq/core/error.h>
#include <kvq/model/memory.h>

using namespace kvq;

namespace {

void print_plan(const apps::Tool& tool, const apps::FisherArguments& arguments, const apps::FisherInputs& inputs) {
  const bool json = tool.common().json;
  std::vector<Window> windows;
  try {
    windows = apps::choose_windows(arguments, inputs);
  } catch (const Error&) {
    if (json) apps::print_result(apps::plan_as_json(inputs.tokens(), nullptr));
    throw;
  }
  const ModelConfig& config = inputs.model->config();
  const auto sequences = static_cast<std::int64_t>(windows.size());
  const Dtype dtype = parse_dtype(arguments.dtype);
  const Recompute recompute = parse_recompute(arguments.recompute);
  const Device device = inputs.model->device();
  const CollectPlan plan = arguments.weights
                               ? plan_weight_fisher(config, dtype, sequences, arguments.seqlen, recompute, device)
                               : plan_collection(config, dtype, sequences, arguments.seqlen, recompute,
                                                 parse_query_heads(arguments.query_heads), !arguments.forward_only,
                                                 arguments.metrics, device);
  apps::print_result(json ? apps::plan_as_json(inputs.tokens(), &plan)
                          : apps::plan_as_text(inputs.tokens(), config, plan));
}

}  // namespace

int main(int argc, char** argv) {
  apps::Tool tool("kvq-fisher", "Runs a model over text and stores keys, values and their loss gradients.");
  apps::FisherArguments arguments;
  apps::add_options(tool.app(), arguments);
  tool.add_common(tool.app(), {});
  return tool.run(argc, argv, [&](RunContext& context) {
    const bool dry_run = tool.common().dry_run;
    if (!dry_run && arguments.output.empty()) fail(ErrorKind::Usage, "-o is missing: the calibration file to write");
    apps::check_kind(arguments);
    apps::open_device(arguments);
    const apps::FisherInputs inputs = apps::load_inputs(arguments, context);
    if (dry_run) return print_plan(tool, arguments, inputs);

    CollectOptions options;
    options.output = arguments.output;
    options.force = tool.common().force;
    options.recompute = parse_recompute(arguments.recompute);
    if (options.recompute == Recompute::Layer) map_large_allocations();  // chosen where memory is short
    options.query_heads = parse_query_heads(arguments.query_heads);
    options.dtype = parse_dtype(arguments.dtype);
    options.gradients = !arguments.forward_only;
    options.metrics = arguments.metrics;
    options.overlap = inputs.model->device() != Device::Cpu;
    options.bos = inputs.prepend_bos ? "window" : "never";
    options.provenance = {
        inputs.model->sha256(), inputs.tokenizer->sha256, inputs.text_sha256(), tool.resolved_config(), {}};
    options.inputs = inputs.watch.get();
    const CollectResult result = (arguments.weights ? collect_weight_fisher : collect_calibration)(
        *inputs.model, apps::choose_windows(arguments, inputs), inputs.domains(), options, context);
    apps::print_result(tool.common().json ? apps::result_as_json(arguments, result)
                                          : apps::result_as_text(arguments, result));
  });
}
