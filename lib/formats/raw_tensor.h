#pragma once
// A tensor's bytes inside a mapped file, and how to read rows of them as fp32: what GGUF and safetensors share.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <kvq/formats/dequantize.h>
#include <kvq/formats/tensor_source.h>

namespace kvq {

struct RawTensor {
  TensorInfo info;
  GgmlType type = GgmlType::F32;
  std::span<const std::byte> bytes;  ///< exactly the elements of info.shape, whole blocks
};

/// See TensorSource::read_rows. `file` is for the message of a NaN or Inf.
void read_tensor_rows(const std::string& file, const RawTensor& tensor, std::int64_t first_row, std::int64_t rows,
                      std::span<float> out);

}  // namespace kvq
