#pragma once
// One safetensors file: an 8-byte length, a JSON header (names, types, shapes, offsets), then the tensors' bytes
// without gaps.

#include <filesystem>
#include <map>
#include <span>
#include <string>

#include <kvq/core/mapped_file.h>
#include <kvq/formats/file_stamp.h>
#include <kvq/formats/raw_tensor.h>

namespace kvq {

/// F32, F16 and BF16 can be read. Integers and truth values (buffers that some models store beside their weights) are
/// listed and refused when read; every other type (F64, 8-bit floats, …) is refused at once.
class SafetensorsFile {
 public:
  /// Throws Input (missing), Format (damaged, unsupported type; names file, tensor and reason).
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// Sorted by name.
  const std::map<std::string, RawTensor>& tensors() const { return tensors_; }
  void read_rows(const RawTensor& tensor, std::int64_t first_row, std::int64_t rows, std::span<float> out) const;
  void release(const RawTensor& tensor) const { file_.release(tensor.bytes); }

 private:
  FileStamp stamp_;  // first: a change while the header is parsed is noticed too
  MappedFile file_;
  std::map<std::string, RawTensor> tensors_;
};

}  // namespace kvq
