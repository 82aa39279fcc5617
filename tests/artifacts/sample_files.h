#pragma once
// Small artifacts with known content, and HDF5 calls to damage them (the C API itself, not our wrapper).

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <hdf5.h>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/quantizer_file.h>
#include <kvq/artifacts/thresholds_file.h>

namespace kvq::test {

inline constexpr KvShape kShape{3, 4, 2, 6};

Provenance sample_provenance();
QuantizerFile sample_quantizer(const std::string& recipe = "nuq2-1%:share=head");
ThresholdsFile sample_thresholds();
CalibrationHeader sample_calibration_header(std::int64_t sequences = 2, std::int64_t seqlen = 5);
CalibrationLayer sample_calibration_layer(const CalibrationHeader& header, int layer);
void write_sample_calibration(const std::filesystem::path& path, const CalibrationHeader& header, int threads = 2,
                              bool force = false);

/// Opens the file for writing with HDF5's own driver.
void edit(const std::filesystem::path& path, const std::function<void(hid_t file)>& change);
void overwrite(hid_t file, const char* dataset, std::size_t index, float value);  ///< float32 datasets
void replace_attribute(hid_t file, const char* name, const std::string& text);
void replace_attribute(hid_t file, const char* name, std::int64_t value);
void replace_attribute(hid_t file, const char* name, double value);
/// A dataset of zeros in the place of another one.
void replace_dataset(hid_t file, const char* name, hid_t type, const std::vector<hsize_t>& shape);

/// What reading the file says; empty when it is accepted.
using Read = std::function<void(const std::filesystem::path&)>;
std::string refusal(const Read& read, const std::filesystem::path& path);
void read_whole_quantizer(const std::filesystem::path& path);
void read_whole_thresholds(const std::filesystem::path& path);
void read_whole_calibration(const std::filesystem::path& path);

}  // namespace kvq::test
