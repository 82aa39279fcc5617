#pragma once
// What an artifact holds, for people (facts, then tables) and for programs. Reading checks the file: what the readers
// refuse, and what cannot be true of a file that our tools wrote.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <kvq/artifacts/artifact_head.h>
#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/provenance.h>
#include <kvq/core/kv_shape.h>
#include <kvq/core/log.h>
#include <kvq/report/table.h>

namespace kvq::apps {

struct Inspection {
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<Table> tables;
};

/// Each reads all of the file and adds to `json`. Throws what the readers throw; Format, naming file and place, for
/// what contradicts itself.
Inspection inspect_calibration(const std::filesystem::path& path, nlohmann::ordered_json& json, RunContext& context);
Inspection inspect_thresholds(const std::filesystem::path& path, nlohmann::ordered_json& json);
Inspection inspect_quantizer(const std::filesystem::path& path, nlohmann::ordered_json& json);
Inspection inspect_weight_fisher(const std::filesystem::path& path, nlohmann::ordered_json& json, RunContext& context);
Inspection inspect_weights(const std::filesystem::path& path, nlohmann::ordered_json& json, RunContext& context);

/// Hashes, parents, shape and settings: what all artifacts have.
void add_provenance(Inspection& inspection, nlohmann::ordered_json& json, const Provenance& provenance,
                    const KvShape& shape);
void add_rope(Inspection& inspection, nlohmann::ordered_json& json, const ModelRope& rope);
/// Sequences, their domains and losses.
void add_sample(Inspection& inspection, nlohmann::ordered_json& json, const CalibrationHeader& header);
/// Four significant digits.
std::string short_number(double value);

}  // namespace kvq::apps
