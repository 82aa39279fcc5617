#include <kvq/formats/safetensors.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/formats/byte_reader.h>
#include <kvq/formats/checked_math.h>
#include <kvq/formats/printable.h>
#include <kvq/formats/strict_json.h>

namespace kvq {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLongestHeader = 100'000'000;  // the limit of the format's own library
constexpr std::size_t kMostAxes = 8;

struct Dtype {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<GgmlType> type;  ///< empty: known, but not a weight that can be read
};

constexpr std::array<Dtype, 12> kDtypes{{{"F32", 4, GgmlType::F32},
                                         {"F16", 2, GgmlType::F16},
                                         {"BF16", 2, GgmlType::BF16},
                                         {"BOOL", 1, {}},
                                         {"U8", 1, {}},
                                         {"I8", 1, {}},
                                         {"U16", 2, {}},
                                         {"I16", 2, {}},
                                         {"U32", 4, {}},
                                         {"I32", 4, {}},
                                         {"U64", 8, {}},
                                         {"I64", 8, {}}}};

const Dtype* find_dtype(std::string_view name) {
  const auto* found =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const Dtype& dtype) { return dtype.name == name; });
  return found == kDtypes.end() ? nullptr : found;
}

struct ByteRange {
  std::uint64_t begin, end;
  const std::string* name;
};

/// Parses the entries of one header; `file` is for messages.
class HeaderParser {
 public:
  HeaderParser(const std::string& file, std::span<const std::byte> data) : file_(file), data_(data) {}

  std::map<std::string, RawTensor> parse(const json& header) {
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") {
        check_metadata(entry);
      } else {
        add(name, entry);
      }
    }
    check_layout();
    return std::move(tensors_);
  }

 private:
  [[noreturn]] void damaged(const std::string& reason) const {
    fail(ErrorKind::Format, fmt::format("{}: damaged header: {}", file_, reason));
  }

  void check_metadata(const json& metadata) const {
    const bool valid = metadata.is_object() && std::all_of(metadata.begin(), metadata.end(),
                                                           [](const json& value) { return value.is_string(); });
    if (!valid) damaged("__metadata__ must be an object of strings");
  }

  void add(const std::string& name, const json& entry) {
    if (name.empty()) damaged("a tensor without a name");
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") || !entry.contains("shape") ||
        !entry.contains("data_offsets")) {
      damaged(fmt::format("tensor {} must have exactly dtype, shape and data_offsets", printable(name)));
    }
    const Dtype& dtype = read_dtype(name, entry["dtype"]);
    RawTensor tensor;
    tensor.info.name = name;
    tensor.info.dtype = dtype.name;
    tensor.info.shape = read_shape(name, entry["shape"]);
    if (dtype.type) tensor.type = *dtype.type;
    tensor.bytes = read_extent(name, entry["data_offsets"], expected_bytes(tensor.info, dtype));
    const auto place = tensors_.emplace(name, std::move(tensor)).first;
    const auto begin = static_cast<std::uint64_t>(place->second.bytes.data() - data_.data());
    extents_.push_back({begin, begin + place->second.bytes.size(), &place->first});
  }

  const Dtype& read_dtype(const std::string& name, const json& value) const {
    if (!value.is_string()) damaged(fmt::format("the dtype of tensor {} is not a string", printable(name)));
    const auto& text = value.get_ref<const std::string&>();
    const Dtype* dtype = find_dtype(text);
    if (!dtype) {
      fail(ErrorKind::Format,
           fmt::format("{}: tensor {} is of type {}, which is not supported; supported are F32, F16, BF16", file_,
                       printable(name), printable(text)));
    }
    return *dtype;
  }

  std::vector<std::int64_t> read_shape(const std::string& name, const json& value) const {
    if (!value.is_array() || value.size() > kMostAxes) {
      damaged(fmt::format("the shape of tensor {} must be an array of at most {} sizes", printable(name), kMostAxes));
    }
    std::vector<std::int64_t> shape;
    for (const json& size : value) {
      const bool valid =
          size.is_number_unsigned() && size.get<std::uint64_t>() > 0 &&
          size.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      if (!valid) {
        damaged(fmt::format("tensor {} has a dimension of size {}; positive integers are allowed", printable(name),
                            printable(size.dump(-1, ' ', false, json::error_handler_t::replace))));
      }
      shape.push_back(size.get<std::int64_t>());
    }
    return shape;
  }

  std::uint64_t expected_bytes(const TensorInfo& info, const Dtype& dtype) const {
    const auto elements = checked_elements(info.shape);
    const auto bytes = elements ? checked_multiply(static_cast<std::uint64_t>(*elements), dtype.bytes) : std::nullopt;
    if (!bytes)
      damaged(
          fmt::format("tensor {} has shape {}, whose size overflows", printable(info.name), shape_text(info.shape)));
    return *bytes;
  }

  std::span<const std::byte> read_extent(const std::string& name, const json& value, std::uint64_t expected) const {
    if (!value.is_array() || value.size() != 2 || !value[0].is_number_unsigned() || !value[1].is_number_unsigned()) {
      damaged(fmt::format("data_offsets of tensor {} must be two non-negative integers", printable(name)));
    }
    const auto begin = value[0].get<std::uint64_t>();
    const auto end = value[1].get<std::uint64_t>();
    if (begin > end)
      damaged(fmt::format("tensor {} begins at {} and ends before it, at {}", printable(name), begin, end));
    if (end - begin != expected) {
      damaged(fmt::format("tensor {} takes {} bytes in the file, but its shape and type need {}", printable(name),
                          end - begin, expected));
    }
    if (end > data_.size()) {
      fail(ErrorKind::Format, fmt::format("{}: truncated: tensor {} ends at byte {} of the data, of which {} are there",
                                          file_, printable(name), end, data_.size()));
    }
    return data_.subspan(begin, end - begin);
  }

  void check_layout() {
    std::sort(extents_.begin(), extents_.end(),
              [](const ByteRange& a, const ByteRange& b) { return a.begin < b.begin; });
    std::uint64_t expected = 0;
    for (const ByteRange& extent : extents_) {
      if (extent.begin != expected) {
        damaged(fmt::format("tensor {} begins at byte {} of the data, but the one before it ends at {}: {}",
                            printable(*extent.name), extent.begin, expected,
                            extent.begin < expected ? "they overlap" : "a hole"));
      }
      expected = extent.end;
    }
    if (expected != data_.size()) {
      fail(ErrorKind::Format, fmt::format("{}: has {} bytes after its last tensor", file_, data_.size() - expected));
    }
  }

  const std::string& file_;
  std::span<const std::byte> data_;
  std::map<std::string, RawTensor> tensors_;
  std::vector<ByteRange> extents_;
};

std::map<std::string, RawTensor> parse_safetensors(const std::string& file, std::span<const std::byte> bytes) {
  ByteReader reader(file, bytes);
  const auto length = reader.read<std::uint64_t>("the length of the header");
  if (length > kLongestHeader) {
    fail(ErrorKind::Format,
         fmt::format("{}: its header claims {} bytes; at most {} are allowed (is it a safetensors file?)", file, length,
                     kLongestHeader));
  }
  const auto* text = reinterpret_cast<const char*>(reader.take(length, "the header"));
  if (length == 0 || *text != '{') {
    fail(ErrorKind::Format, fmt::format("{}: is not a safetensors file (no JSON object at byte 8)", file));
  }
  const json header = parse_strict_json(file + " (header)", {text, static_cast<std::size_t>(length)});
  return HeaderParser(file, bytes.subspan(8 + length)).parse(header);
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : stamp_(path), file_(path), tensors_(parse_safetensors(path.string(), file_.bytes())) {}

void SafetensorsFile::read_rows(const RawTensor& tensor, std::int64_t first_row, std::int64_t rows,
                                std::span<float> out) const {
  if (!find_dtype(tensor.info.dtype)->type) {
    fail(ErrorKind::Format, fmt::format("{}: tensor {} is of type {}; weights must be F32, F16 or BF16",
                                        path().string(), printable(tensor.info.name), tensor.info.dtype));
  }
  stamp_.require_unchanged();  // a file cut short would end the process at the first missing page
  read_tensor_rows(path().string(), tensor, first_row, rows, out);
  stamp_.require_unchanged();
}

}  // namespace kvq
