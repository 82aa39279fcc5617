#pragma once
// What all collections over a calibration sample share. Internal to lib/calib.

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/calib/collect.h>
#include <kvq/calib/journal.h>
#include <kvq/core/error.h>
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

/// True when a run of exactly this kind was killed between giving the output its name and the end of removing the
/// journal.
template <class Reader>
bool finished_but_for_the_journal(const CollectOptions& options, const CalibrationHeader& header,
                                  const RunIdentity& identity, std::vector<double>& loss) {
  const std::filesystem::path journal = Journal::folder_of(options.output);
  if (options.force || !std::filesystem::exists(options.output) ||
      !(RunFolder::belongs(journal, identity) || RunFolder::is_left_over(journal)))
    return false;
  try {
    const Reader reader(options.output);
    loss = reader.header().loss;
    return same_content(reader.header(), header);
  } catch (const Error&) {
    return false;
  }
}

using CollectClock = std::chrono::steady_clock;
inline double seconds_since(CollectClock::time_point start) {
  return std::chrono::duration<double>(CollectClock::now() - start).count();
}

}  // namespace kvq
