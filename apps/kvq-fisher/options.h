#pragma once
// Options of kvq-fisher.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/loaded_model.h"

namespace kvq::apps {

struct FisherArguments : ModelArguments {
  std::filesystem::path output;
  std::vector<std::string> text;
  std::int64_t samples = 16, seqlen = 2048;
  bool sequential = false;
  std::string recompute = "auto";
  std::uint64_t seed = 0;
  bool weights = false, forward_only = false, metrics = false;
  std::string query_heads = "joint";
};

void add_options(CLI::App& command, FisherArguments& arguments);

/// Throws Usage for options that do not go together.
void check_kind(const FisherArguments& arguments);

}  // namespace kvq::apps
