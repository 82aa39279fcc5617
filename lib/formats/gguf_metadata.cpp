#include <kvq/formats/gguf_metadata.h>

#include <limits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvq/formats/printable.h>

namespace kvq {
namespace {

constexpr std::uint64_t kLongestKey = 65535;  // the limit of the GGUF specification
// key length, one letter, type, a one-byte value
constexpr std::uint64_t kSmallestPair = 8 + 1 + 4 + 1;

enum ValueType : std::uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };

template <typename T, typename Out, typename What>
std::vector<Out> read_numbers(ByteReader& reader, std::uint64_t count, const What& what) {
  reader.require_room(count, sizeof(T), what);
  const std::byte* at = reader.take(count * sizeof(T), what);
  std::vector<Out> out(count);
  for (std::uint64_t index = 0; index < count; ++index) {
    T value;
    std::memcpy(&value, at + index * sizeof(T), sizeof(T));
    out[index] = static_cast<Out>(value);
  }
  return out;
}

template <typename What>
bool read_bool(ByteReader& reader, const What& what) {
  const auto value = reader.read<std::uint8_t>(what);
  if (value > 1) reader.damaged(fmt::format("{} is a truth value of {}; 0 or 1 is allowed", what(), value));
  return value == 1;
}

template <typename What>
GgufValue read_array(ByteReader& reader, const What& what) {
  const auto type = reader.read<std::uint32_t>(what);
  const auto count = reader.read<std::uint64_t>(what);
  const auto integers = [&]<typename T>(T) { return GgufValue(read_numbers<T, std::int64_t>(reader, count, what)); };
  switch (type) {
    case U8:
      return integers(std::uint8_t{});
    case I8:
      return integers(std::int8_t{});
    case U16:
      return integers(std::uint16_t{});
    case I16:
      return integers(std::int16_t{});
    case U32:
      return integers(std::uint32_t{});
    case I32:
      return integers(std::int32_t{});
    case I64:
      return integers(std::int64_t{});
    case U64: {
      auto values = read_numbers<std::uint64_t, std::int64_t>(reader, count, what);
      for (const std::int64_t value : values) {
        if (value < 0) reader.damaged(fmt::format("{} holds an integer above 2^63", what()));
      }
      return GgufValue(std::move(values));
    }
    case F32:
      return GgufValue(read_numbers<float, double>(reader, count, what));
    case F64:
      return GgufValue(read_numbers<double, double>(reader, count, what));
    case Bool: {
      reader.require_room(count, 1, what);
      std::vector<std::int64_t> values(count);
      for (std::int64_t& value : values) value = read_bool(reader, what) ? 1 : 0;
      return GgufValue(std::move(values));
    }
    case String: {
      reader.require_room(count, sizeof(std::uint64_t), what);
      std::vector<std::string> values;
      values.reserve(count);
      for (std::uint64_t index = 0; index < count; ++index) {
        values.emplace_back(reader.read_string(std::numeric_limits<std::uint64_t>::max(), what));
      }
      return GgufValue(std::move(values));
    }
    case Array:
      reader.damaged(fmt::format("{} is an array of arrays, which is not supported", what()));
    default:
      reader.damaged(fmt::format("{} is an array of unknown type {}; types 0 to 12 are known", what(), type));
  }
}

template <typename What>
GgufValue read_value(ByteReader& reader, const What& what) {
  const auto type = reader.read<std::uint32_t>(what);
  const auto integer = [&]<typename T>(T) { return GgufValue(static_cast<std::int64_t>(reader.read<T>(what))); };
  switch (type) {
    case U8:
      return integer(std::uint8_t{});
    case I8:
      return integer(std::int8_t{});
    case U16:
      return integer(std::uint16_t{});
    case I16:
      return integer(std::int16_t{});
    case U32:
      return integer(std::uint32_t{});
    case I32:
      return integer(std::int32_t{});
    case I64:
      return integer(std::int64_t{});
    case U64:
      return GgufValue(reader.read<std::uint64_t>(what));
    case F32:
      return GgufValue(static_cast<double>(reader.read<float>(what)));
    case F64:
      return GgufValue(reader.read<double>(what));
    case Bool:
      return GgufValue(read_bool(reader, what));
    case String:
      return GgufValue(std::string(reader.read_string(std::numeric_limits<std::uint64_t>::max(), what)));
    case Array:
      return read_array(reader, what);
    default:
      reader.damaged(fmt::format("{} is of unknown type {}; types 0 to 12 are known", what(), type));
  }
}

}  // namespace

std::map<std::string, GgufValue> read_gguf_metadata(ByteReader& reader, std::uint64_t count) {
  reader.require_room(count, kSmallestPair, "the metadata");
  std::map<std::string, GgufValue> metadata;
  for (std::uint64_t index = 0; index < count; ++index) {
    std::string key(reader.read_string(kLongestKey, "a metadata key"));
    if (key.empty()) reader.damaged("a metadata key without a name");
    const auto [place, is_new] = metadata.try_emplace(std::move(key));
    if (!is_new) reader.damaged(fmt::format("metadata key {} is listed twice", printable(place->first)));
    place->second = read_value(reader, [&] { return fmt::format("metadata key {}", printable(place->first)); });
  }
  return metadata;
}

}  // namespace kvq
