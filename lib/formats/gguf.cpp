#include <kvq/formats/gguf.h>

#include <cstring>
#include <limits>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/file_stamp.h>
#include <kvq/formats/gguf_parse.h>
#include <kvq/formats/printable.h>

namespace kvq {

struct GgufFile::Impl {
  explicit Impl(const std::filesystem::path& path)
      : stamp(path), file(path), content(parse_gguf(path.string(), file.bytes())) {}

  const RawTensor& tensor(const std::string& name) const {
    const auto found = content.tensors.find(name);
    if (found == content.tensors.end()) {
      fail(ErrorKind::Format, fmt::format("{}: has no tensor {}", file.path().string(), printable(name)));
    }
    return found->second;
  }

  /// nullptr when the key is absent; throws when its value is of another type.
  template <typename T>
  const T* typed(const std::string& key, const char* wanted) const {
    const auto found = content.metadata.find(key);
    if (found == content.metadata.end()) return nullptr;
    if (const T* value = std::get_if<T>(&found->second)) return value;
    wrong_type(key, wanted);
  }

  [[noreturn]] void wrong_type(const std::string& key, const char* wanted) const {
    static constexpr const char* kTypes[] = {
        "a truth value", "an integer",           "an integer",          "a number",
        "a string",      "an array of integers", "an array of numbers", "an array of strings"};
    static_assert(std::size(kTypes) == std::variant_size_v<GgufValue>);
    fail(ErrorKind::Format, fmt::format("{}: metadata key {} is {}; {} is needed", file.path().string(), printable(key),
                                        kTypes[content.metadata.at(key).index()], wanted));
  }

  [[noreturn]] void missing(const std::string& key) const {
    fail(ErrorKind::Format, fmt::format("{}: metadata key {} is missing", file.path().string(), printable(key)));
  }

  FileStamp stamp;  // first: a change while the header is parsed is noticed too
  MappedFile file;
  GgufContent content;
};

GgufFile::GgufFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
GgufFile::~GgufFile() = default;

const std::filesystem::path& GgufFile::path() const { return impl_->file.path(); }

const GgufValue* GgufFile::metadata(const std::string& key) const {
  const auto found = impl_->content.metadata.find(key);
  return found == impl_->content.metadata.end() ? nullptr : &found->second;
}

std::int64_t GgufFile::require_int(const std::string& key) const {
  const auto value = find_int(key);
  if (!value) impl_->missing(key);
  return *value;
}

std::string GgufFile::require_string(const std::string& key) const {
  const auto* value = impl_->typed<std::string>(key, "a string");
  if (!value) impl_->missing(key);
  return *value;
}

std::optional<std::int64_t> GgufFile::find_int(const std::string& key) const {
  const GgufValue* value = metadata(key);
  if (!value) return std::nullopt;
  if (const auto* number = std::get_if<std::uint64_t>(value)) {
    if (*number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      fail(ErrorKind::Format,
           fmt::format("{}: metadata key {} is {}, which is too large", path().string(), printable(key), *number));
    }
    return static_cast<std::int64_t>(*number);
  }
  return *impl_->typed<std::int64_t>(key, "an integer");
}

std::optional<double> GgufFile::find_double(const std::string& key) const {
  const GgufValue* value = metadata(key);
  if (!value) return std::nullopt;
  if (std::holds_alternative<std::int64_t>(*value) || std::holds_alternative<std::uint64_t>(*value)) {
    return static_cast<double>(*find_int(key));
  }
  return *impl_->typed<double>(key, "a number");
}

std::optional<bool> GgufFile::find_bool(const std::string& key) const {
  const auto* value = impl_->typed<bool>(key, "a truth value");
  return value ? std::optional(*value) : std::nullopt;
}

std::optional<std::string> GgufFile::find_string(const std::string& key) const {
  const auto* value = impl_->typed<std::string>(key, "a string");
  return value ? std::optional(*value) : std::nullopt;
}

const std::vector<std::string>* GgufFile::find_strings(const std::string& key) const {
  return impl_->typed<std::vector<std::string>>(key, "an array of strings");
}

const std::vector<double>* GgufFile::find_doubles(const std::string& key) const {
  return impl_->typed<std::vector<double>>(key, "an array of numbers");
}

const std::vector<std::int64_t>* GgufFile::find_ints(const std::string& key) const {
  return impl_->typed<std::vector<std::int64_t>>(key, "an array of integers");
}

const TensorInfo* GgufFile::find(const std::string& name) const {
  const auto found = impl_->content.tensors.find(name);
  return found == impl_->content.tensors.end() ? nullptr : &found->second.info;
}

std::vector<std::string> GgufFile::names() const {
  std::vector<std::string> names;
  names.reserve(impl_->content.tensors.size());
  for (const auto& [name, tensor] : impl_->content.tensors) names.push_back(name);
  return names;
}

void GgufFile::read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                         std::span<float> out) const {
  impl_->stamp.require_unchanged();  // a file cut short would end the process at the first missing page
  read_tensor_rows(path().string(), impl_->tensor(name), first_row, rows, out);
  impl_->stamp.require_unchanged();
}

void GgufFile::release(const std::string& name) const { impl_->file.release(impl_->tensor(name).bytes); }

bool is_gguf(const std::filesystem::path& path) {
  const MappedFile file(path);
  return file.bytes().size() >= 4 && std::memcmp(file.bytes().data(), "GGUF", 4) == 0;
}

}  // namespace kvq
