#pragma once
// --dry-run of the commands that let the model write.

#include <cstdint>
#include <vector>

#include <kvq/eval/plan.h>

namespace kvq::apps {

/// Prints what `caches` caches will take for prompts of the given lengths.
void print_generation_plan(const GenerationPlan& plan, const std::vector<std::int64_t>& lengths, std::int64_t caches,
                           bool json);

}  // namespace kvq::apps
