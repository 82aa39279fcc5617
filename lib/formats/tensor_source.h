#pragma once
// Named weight tensors of a model file, whatever its format: GGUF or (sharded) safetensors.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvq {

/// Shape is row-major, outermost dimension first, as Hugging Face writes it (GGUF's reversed order is undone).
struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  std::string dtype;  ///< the file's own name of the type, e.g. "Q4_1", "BF16"
};

/// Read-only, memory-mapped. Thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// nullptr when there is no such tensor.
  virtual const TensorInfo* find(const std::string& name) const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Rows [first_row, first_row + rows) of the outermost dimension as fp32; `out` has exactly that many elements.
  /// (A 1-D tensor has rows of one element.) Throws Format for NaN/Inf: names file, tensor and position.
  virtual void read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                         std::span<float> out) const = 0;
  /// Lets go of the memory behind a tensor's bytes (they can be read again).
  virtual void release(const std::string& name) const = 0;
};

}  // namespace kvq
