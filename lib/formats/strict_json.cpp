#include <kvq/formats/strict_json.h>

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/core/mapped_file.h>
#include <kvq/formats/hf_folder.h>
#include <kvq/formats/printable.h>

namespace kvq {
namespace {

using nlohmann::json;

constexpr std::size_t kDeepest = 64;
constexpr std::size_t kLargestFile = std::size_t{256} << 20;  // tokenizer.json of a 256 000-token vocabulary: 35 MB

/// Builds the document itself, because nlohmann's own builder keeps the last of two equal keys without a word, and its
/// callback is called too late for keys and takes quadratic time in an object of objects.
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(std::string where) : where_(std::move(where)) {}

  json take() { return std::move(root_); }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return false; }  // does not occur in text

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    auto& object = open_.back()->get_ref<json::object_t&>();
    const auto [place, is_new] = object.emplace(std::move(name), nullptr);
    if (!is_new)
      fail(ErrorKind::Format, fmt::format("{}: key {} occurs twice in one object", where_, printable(place->first)));
    slot_ = &place->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) override {
    std::string reason = error.what();
    if (const auto colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
    reason.erase(std::min(reason.size(), reason.find("; last read")));
    fail(ErrorKind::Format,
         fmt::format("{}: is not valid JSON at byte {}, near {}: {}", where_, position, printable(token), reason));
  }

 private:
  json* place(json&& value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      return &array.emplace_back(std::move(value));
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool add(json&& value) {
    place(std::move(value));
    return true;
  }

  bool open(json&& container) {
    if (open_.size() == kDeepest) {
      fail(ErrorKind::Format, fmt::format("{}: nested more than {} levels deep", where_, kDeepest));
    }
    // The pointer stays valid: an array grows only while none of its elements is open.
    open_.push_back(place(std::move(container)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string where_;
  json root_;
  std::vector<json*> open_;  ///< objects and arrays that have begun and not ended
  json* slot_ = nullptr;     ///< where the value of the last key belongs
};

}  // namespace

json parse_strict_json(const std::string& where, std::string_view text) {
  // nlohmann takes a NUL for the end of the text and would not look at what follows.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail(ErrorKind::Format, fmt::format("{}: is not valid JSON at byte {}: a NUL byte", where, nul + 1));
  }
  Builder builder(where);
  json::sax_parse(text.begin(), text.end(), &builder, json::input_format_t::json, true);
  return builder.take();
}

json read_json_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  if (bytes.size() > kLargestFile) {
    fail(ErrorKind::Format, fmt::format("{}: has {} bytes; JSON files of at most {} bytes are read", path.string(),
                                        bytes.size(), kLargestFile));
  }
  return parse_strict_json(path.string(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

std::string json_problem(std::string_view what) {
  const std::size_t end = what.starts_with("[json.") ? what.find("] ") : std::string_view::npos;
  return std::string(end == std::string_view::npos ? what : what.substr(end + 2));
}

}  // namespace kvq
