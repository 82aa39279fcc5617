#include "kvq-eval/generation_plan.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/tool.h"

#include <kvq/core/plural.h>

namespace kvq::apps {

void print_generation_plan(const GenerationPlan& plan, const std::vector<std::int64_t>& lengths, std::int64_t caches,
                           bool json) {
  if (json) {
    print_result(nlohmann::ordered_json({{"prompts", plan.prompts},
                                         {"lengths", lengths},
                                         {"caches", caches},
                                         {"memory_bytes", plan.peak_memory_bytes},
                                         {"device_memory_bytes", plan.device_memory_bytes},
                                         {"seconds", std::round(plan.seconds)}})
                     .dump(2));
  } else {
    print_result(
        fmt::format("prompts   {} for each cache, up to {}\ncaches    {}, the unquantized one included\n"
                    "memory    about {}\ntime      about {}\n",
                    plan.prompts, plural(*std::max_element(lengths.begin(), lengths.end()), "token"), caches,
                    human_memory(plan.peak_memory_bytes, plan.device_memory_bytes), human_seconds(plan.seconds)));
  }
}

}  // namespace kvq::apps
