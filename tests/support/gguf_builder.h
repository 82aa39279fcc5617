#pragma once
// A GGUF file in parts, each of which a test can make wrong.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/byte_string.h"

namespace kvq::test {

struct GgufTensorPart {
  std::string name;
  std::vector<std::uint64_t> sizes;  ///< in the file's order, fastest first
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
  std::string data;  ///< without padding
};

struct GgufParts {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> tensor_count, pair_count;  ///< when empty: what is there
  std::vector<std::string> pairs;                         ///< see gguf_pair
  std::vector<GgufTensorPart> tensors;
  std::uint64_t alignment = 32;

  std::string build() const {
    std::string out =
        magic + u32(version) + u64(tensor_count.value_or(tensors.size())) + u64(pair_count.value_or(pairs.size()));
    for (const std::string& pair : pairs) out += pair;
    for (const GgufTensorPart& tensor : tensors) {
      out += gguf_string(tensor.name) + u32(static_cast<std::uint32_t>(tensor.sizes.size()));
      for (const std::uint64_t size : tensor.sizes) out += u64(size);
      out += u32(tensor.type) + u64(tensor.offset);
    }
    pad(out);
    for (const GgufTensorPart& tensor : tensors) {
      out += tensor.data;
      pad(out);
    }
    return out;
  }

 private:
  void pad(std::string& out) const { out.resize((out.size() + alignment - 1) / alignment * alignment); }
};

inline std::string gguf_pair(std::string_view key, std::uint32_t type, std::string_view value) {
  return gguf_string(key) + u32(type) + std::string(value);
}

/// An array's value: element type, count, elements.
inline std::string gguf_array(std::uint32_t type, std::uint64_t count, std::string_view elements) {
  return u32(type) + u64(count) + std::string(elements);
}

}  // namespace kvq::test
