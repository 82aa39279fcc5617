#pragma once
// What kvq-fisher prints: the plan, and the result.

#include <string>

#include "kvq-fisher/options.h"

#include <kvq/calib/collect.h>
#include <kvq/model/config.h>

namespace kvq::apps {

/// `plan` may be null where the text does not allow a run: the number of tokens is worth knowing even then.
std::string plan_as_json(std::int64_t tokens, const CollectPlan* plan);
std::string plan_as_text(std::int64_t tokens, const ModelConfig& config, const CollectPlan& plan);

std::string result_as_json(const FisherArguments& arguments, const CollectResult& result);
std::string result_as_text(const FisherArguments& arguments, const CollectResult& result);

}  // namespace kvq::apps
