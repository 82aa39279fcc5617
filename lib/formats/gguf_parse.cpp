#include <kvq/formats/gguf_parse.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/checked_math.h>
#include <kvq/formats/ggml_type_names.h>
#include <kvq/formats/gguf_metadata.h>
#include <kvq/formats/printable.h>

namespace kvq {
namespace {

constexpr std::uint32_t kOldestVersion = 2, kNewestVersion = 3;
constexpr std::uint64_t kLongestTensorName = 255;  // ggml writes at most 63
constexpr std::uint32_t kMostDimensions = 4;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kLargestAlignment = std::uint64_t{1} << 30;
// name length, one letter, number of dimensions, one dimension, type, offset
constexpr std::uint64_t kSmallestTensorEntry = 8 + 1 + 4 + 8 + 4 + 8;

struct Extent {
  std::uint64_t offset;  ///< from the start of the data section
  std::uint64_t bytes;
  RawTensor* tensor;
};

void check_version(ByteReader& reader) {
  const auto magic = reader.read<std::uint32_t>("the magic");
  if (magic != 0x46554747u) {  // "GGUF", little-endian
    fail(ErrorKind::Format, fmt::format("{}: is not a GGUF file (it does not begin with 'GGUF')", reader.file()));
  }
  const auto version = reader.read<std::uint32_t>("the version");
  if (version != 0 && (version & 0xffffu) == 0) {
    fail(ErrorKind::Format,
         fmt::format("{}: is a big-endian GGUF file; only little-endian files are read", reader.file()));
  }
  if (version < kOldestVersion || version > kNewestVersion) {
    fail(ErrorKind::Format, fmt::format("{}: GGUF version {}; versions {} to {} are read", reader.file(), version,
                                        kOldestVersion, kNewestVersion));
  }
}

std::uint64_t alignment_of(const ByteReader& reader, const std::map<std::string, GgufValue>& metadata) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultAlignment;
  const auto* value = std::get_if<std::int64_t>(&found->second);
  const std::uint64_t alignment = value && *value > 0 ? static_cast<std::uint64_t>(*value) : 0;
  if (alignment < 8 || alignment > kLargestAlignment || !std::has_single_bit(alignment)) {
    reader.damaged(fmt::format("general.alignment is {}; it must be a power of two from 8 to {}",
                               value ? fmt::to_string(*value) : "not an integer", kLargestAlignment));
  }
  return alignment;
}

/// Dimensions in the file's order (fastest first); returns them outermost first.
std::vector<std::int64_t> read_shape(ByteReader& reader, const std::string& name) {
  const auto what = [&] { return fmt::format("the shape of tensor {}", printable(name)); };
  const auto dimensions = reader.read<std::uint32_t>(what);
  if (dimensions == 0 || dimensions > kMostDimensions) {
    reader.damaged(
        fmt::format("tensor {} has {} dimensions; 1 to {} are allowed", printable(name), dimensions, kMostDimensions));
  }
  std::vector<std::int64_t> shape(dimensions);
  for (std::uint32_t dim = dimensions; dim-- > 0;) {
    const auto size = reader.read<std::uint64_t>(what);
    if (size == 0 || size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      reader.damaged(fmt::format("tensor {} has a dimension of size {}", printable(name), size));
    }
    shape[dim] = static_cast<std::int64_t>(size);
  }
  return shape;
}

/// Size in bytes of the tensor's data.
std::uint64_t checked_bytes(const ByteReader& reader, const RawTensor& tensor, const GgmlTypeTraits& traits) {
  const std::int64_t row = tensor.info.shape.back();
  if (row % traits.block_values != 0) {
    reader.damaged(fmt::format("tensor {} has rows of {} values, not a multiple of the {} of a {} block",
                               printable(tensor.info.name), row, traits.block_values, traits.name));
  }
  const auto elements = checked_elements(tensor.info.shape);
  const auto bytes = elements ? checked_multiply(static_cast<std::uint64_t>(*elements / traits.block_values),
                                                 static_cast<std::uint64_t>(traits.block_bytes))
                              : std::nullopt;
  if (!bytes) {
    reader.damaged(fmt::format("tensor {} has shape {}, whose size overflows", printable(tensor.info.name),
                               shape_text(tensor.info.shape)));
  }
  return *bytes;
}

Extent read_tensor_entry(ByteReader& reader, std::map<std::string, RawTensor>& tensors) {
  std::string name(reader.read_string(kLongestTensorName, "a tensor's name"));
  if (name.empty()) reader.damaged("a tensor without a name");
  const auto [place, is_new] = tensors.try_emplace(name);
  if (!is_new) reader.damaged(fmt::format("tensor {} is listed twice", printable(name)));
  RawTensor& tensor = place->second;
  tensor.info.name = name;
  tensor.info.shape = read_shape(reader, name);
  const auto type = reader.read<std::uint32_t>([&] { return fmt::format("the type of tensor {}", printable(name)); });
  const GgmlTypeTraits* traits = ggml_type_traits(type);
  if (!traits) {
    const char* type_name = ggml_type_name(type);
    fail(ErrorKind::Format,
         fmt::format("{}: tensor {} is of type {}{}, which is not supported; supported are {}", reader.file(),
                     printable(name), type, type_name ? fmt::format(" ({})", type_name) : "", supported_ggml_types()));
  }
  tensor.type = static_cast<GgmlType>(type);
  tensor.info.dtype = traits->name;
  const auto offset =
      reader.read<std::uint64_t>([&] { return fmt::format("the offset of tensor {}", printable(name)); });
  return {offset, checked_bytes(reader, tensor, *traits), &tensor};
}

/// The data section must be exactly the tensors, each padded to the alignment: no hole, no overlap, nothing missing or
/// left.
void place_tensors(const ByteReader& reader, std::vector<Extent>& extents, std::uint64_t alignment,
                   std::span<const std::byte> bytes) {
  const auto start = checked_align(reader.offset(), alignment);
  if (!start || *start > bytes.size()) {
    reader.damaged(fmt::format("ends before the tensor data, which begins at {}", start.value_or(0)));
  }
  const std::span<const std::byte> data = bytes.subspan(*start);
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.offset < b.offset; });
  std::uint64_t expected = 0;
  for (const Extent& extent : extents) {
    const std::string name = printable(extent.tensor->info.name);
    if (extent.offset % alignment != 0) {
      reader.damaged(
          fmt::format("tensor {} begins at {}, not a multiple of the alignment {}", name, extent.offset, alignment));
    }
    if (extent.offset != expected) {
      reader.damaged(fmt::format("tensor {} begins at {} of the data section, but the tensor before it ends at {}: {}",
                                 name, extent.offset, expected, extent.offset < expected ? "they overlap" : "a hole"));
    }
    const auto end = checked_add(extent.offset, extent.bytes);
    const auto padded = end ? checked_align(*end, alignment) : std::nullopt;
    if (!padded || *padded > data.size()) {
      fail(ErrorKind::Format,
           fmt::format("{}: truncated: tensor {} needs {} bytes from byte {} on, but the file has {} bytes",
                       reader.file(), name, extent.bytes, *start + extent.offset, bytes.size()));
    }
    extent.tensor->bytes = data.subspan(extent.offset, extent.bytes);
    expected = *padded;
  }
  if (expected != data.size()) {
    fail(ErrorKind::Format, fmt::format("{}: has {} bytes after its last tensor, which ends at byte {}", reader.file(),
                                        data.size() - expected, *start + expected));
  }
}

}  // namespace

GgufContent parse_gguf(const std::string& file, std::span<const std::byte> bytes) {
  ByteReader reader(file, bytes);
  check_version(reader);
  const auto tensor_count = reader.read<std::uint64_t>("the number of tensors");
  const auto key_count = reader.read<std::uint64_t>("the number of metadata keys");
  GgufContent content;
  content.metadata = read_gguf_metadata(reader, key_count);
  const std::uint64_t alignment = alignment_of(reader, content.metadata);

  reader.require_room(tensor_count, kSmallestTensorEntry, "the table of tensors");
  std::vector<Extent> extents;
  extents.reserve(tensor_count);
  for (std::uint64_t index = 0; index < tensor_count; ++index) {
    extents.push_back(read_tensor_entry(reader, content.tensors));
  }
  place_tensors(reader, extents, alignment, bytes);
  return content;
}

}  // namespace kvq
