#pragma once
// Names of ggml's tensor types, the unsupported ones included, so that a refusal can say what the file holds.

#include <cstdint>

namespace kvq {

/// nullptr for a number beyond those known.
const char* ggml_type_name(std::uint32_t type);

/// The supported ones, for messages.
const char* supported_ggml_types();

}  // namespace kvq
