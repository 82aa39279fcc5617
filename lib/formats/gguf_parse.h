#pragma once
// The header of a GGUF file: metadata and the table of tensors, with every size, offset and name checked.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <unordered_map>

#include <kvq/formats/gguf.h>
#include <kvq/formats/raw_tensor.h>

namespace kvq {

struct GgufContent {
  std::map<std::string, GgufValue> metadata;
  std::map<std::string, RawTensor> tensors;  ///< bytes are views of the file
};

/// Throws Format; `file` begins the message.
GgufContent parse_gguf(const std::string& file, std::span<const std::byte> bytes);

}  // namespace kvq
