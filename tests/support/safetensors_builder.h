#pragma once
// A safetensors file from a header's text and the data behind it.

#include <string>
#include <string_view>

#include "support/byte_string.h"

namespace kvq::test {

inline std::string safetensors(std::string_view header, std::string_view data) {
  return u64(header.size()) + std::string(header) + std::string(data);
}

/// `"name":{"dtype":…,"shape":…,"data_offsets":[begin,end]}`
inline std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                         const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

}  // namespace kvq::test
