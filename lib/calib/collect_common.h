#pragma once
// What all collections over a calibration sample share. Internal to lib/calib.

#include <filesystem>
#include <string>
#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/calib/collect.h>
#include <kvq/core/run_folder.h>

namespace kvq {

/// All but the losses.
CalibrationHeader header_of(const Model& model, const std::vector<Window>& windows,
                            const std::vector<std::string>& domains, const CollectOptions& options);
/// `what` is collected, for the journal to belong to one kind of run.
RunIdentity identity_of(const CalibrationHeader& header, const std::string& what, int threads);
/// Throws Mismatch for a token that the model does not know.
void check_ids(const std::vector<Window>& windows, int vocab);
/// Temporary files of runs that were killed while they assembled this output. The journal's lock is held.
void remove_stale_parts(const std::filesystem::path& output);
/// The same sample of the same model with the same settings; losses are not looked at.
bool same_content(const CalibrationHeader& a, const CalibrationHeader& b);

}  // namespace kvq
