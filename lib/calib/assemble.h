#pragma once
// Journal to calib.h5, one layer in memory at a time, in fixed order.

#include <filesystem>
#include <vector>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/calib/sequence_file.h>
#include <kvq/core/log.h>
#include <kvq/model/model.h>

namespace kvq {

/// The metric of values comes from `model`'s weights, if the header wants it. `header.loss` comes from the sequences.
/// Throws as CalibrationWriter, Numeric, Io, Interrupted.
void assemble_calibration(const std::filesystem::path& output, bool force, const CalibrationHeader& header,
                          const SequenceLayout& layout, const std::vector<SequenceReader>& sequences, Model& model,
                          RunContext& context);

}  // namespace kvq
