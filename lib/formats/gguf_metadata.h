#pragma once
// GGUF's typed key-value pairs.

#include <cstdint>
#include <map>
#include <string>

#include <kvq/formats/byte_reader.h>
#include <kvq/formats/gguf.h>

namespace kvq {

/// Reads `count` pairs. Throws Format: duplicate or empty key, unknown type, array of arrays, more than the file can
/// hold.
std::map<std::string, GgufValue> read_gguf_metadata(ByteReader& reader, std::uint64_t count);

}  // namespace kvq
