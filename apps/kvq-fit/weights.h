#pragma once
// kvq-fit --weights.

#include "common/tool.h"
#include "kvq-fit/options.h"

#include <kvq/core/log.h>

namespace kvq::apps {

/// Throws Usage; Mismatch for a Fisher file of another model; Io.
void fit_weights(const Tool& tool, const FitArguments& arguments, RunContext& context);

}  // namespace kvq::apps
