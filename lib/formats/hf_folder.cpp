#include <kvq/formats/hf_folder.h>

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/formats/printable.h>
#include <kvq/formats/safetensors.h>

namespace kvq {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

/// tensor -> shard, as the index lists them.
using WeightMap = std::map<std::string, std::string>;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

void require_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status))
    fail(ErrorKind::Input, fmt::format("{}: {}", folder.string(), error ? error.message() : "does not exist"));
  if (!fs::is_directory(status)) {
    fail(ErrorKind::Input,
         fmt::format("{}: is not a folder; a Hugging Face model is a folder with config.json", folder.string()));
  }
}

[[noreturn]] void no_weights(const fs::path& folder) {
  std::vector<std::string> others;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string suffix = entry.path().extension().string();
    if (suffix == ".safetensors" || suffix == ".bin" || suffix == ".pt" || suffix == ".pth" || suffix == ".gguf") {
      others.push_back(printable(entry.path().filename().string()));
    }
  }
  std::sort(others.begin(), others.end());
  fail(ErrorKind::Input,
       fmt::format("{}: has neither {} nor {}{}", folder.string(), kSingle, kIndex,
                   others.empty() ? std::string() : fmt::format("; found {}", fmt::join(others, ", "))));
}

WeightMap read_index(const fs::path& path) {
  const json index = read_json_file(path);
  const auto damaged = [&](const std::string& reason) {
    fail(ErrorKind::Format, fmt::format("{}: {}", path.string(), reason));
  };
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    damaged("has no object weight_map");
  }
  WeightMap weights;
  for (const auto& [name, shard] : index["weight_map"].items()) {
    if (!shard.is_string()) damaged(fmt::format("the shard of tensor {} is not a string", printable(name)));
    const auto& file = shard.get_ref<const std::string&>();
    // Only files beside the index: an index from elsewhere must not open what it likes.
    if (file.empty() || fs::path(file).filename() != file || fs::path(file).extension() != ".safetensors") {
      damaged(fmt::format("the shard of tensor {} is {}; the name of a .safetensors file in the same folder is needed",
                          printable(name), printable(file)));
    }
    weights.emplace(name, file);
  }
  if (weights.empty()) damaged("weight_map lists no tensor");
  return weights;
}

}  // namespace

struct HfFolder::Impl {
  explicit Impl(const fs::path& path) : folder(path) {
    require_folder(folder);
    const fs::path config_path = folder / "config.json";
    if (!is_there(config_path)) fail(ErrorKind::Input, fmt::format("{}: has no config.json", folder.string()));
    config = read_json_file(config_path);
    if (!config.is_object()) fail(ErrorKind::Format, fmt::format("{}: is not a JSON object", config_path.string()));
    // transformers looks for the single file first, too.
    if (is_there(folder / kSingle)) {
      add_shard(folder / kSingle);
    } else if (is_there(folder / kIndex)) {
      open_shards(read_index(folder / kIndex));
    } else {
      no_weights(folder);
    }
  }

  void open_shards(const WeightMap& weights) {
    std::map<std::string, std::string> first_tensor;  // of each shard, for the message
    for (const auto& [name, file] : weights) first_tensor.emplace(file, name);
    for (const auto& [file, name] : first_tensor) {
      if (!is_there(folder / file)) {
        fail(ErrorKind::Input, fmt::format("{}: shard {} is missing; {} lists it, for tensor {} among others",
                                           folder.string(), printable(file), kIndex, printable(name)));
      }
      add_shard(folder / file);
    }
    for (const auto& [name, file] : weights) {
      const auto found = tensors.find(name);
      const std::string there = found == tensors.end() ? "" : found->second.first->path().filename().string();
      if (there == file) continue;
      fail(ErrorKind::Format,
           fmt::format("{}: tensor {} should be in {}, as {} says, but is {}", folder.string(), printable(name),
                       printable(file), kIndex,
                       there.empty() ? std::string("in no shard") : fmt::format("in {}", printable(there))));
    }
  }

  void add_shard(const fs::path& path) {
    shards.push_back(std::make_unique<SafetensorsFile>(path));
    const SafetensorsFile& shard = *shards.back();
    for (const auto& [name, tensor] : shard.tensors()) {
      const auto [place, is_new] = tensors.emplace(name, std::pair(&shard, &tensor));
      if (!is_new) {
        fail(ErrorKind::Format, fmt::format("{}: tensor {} is in two shards, {} and {}", folder.string(),
                                            printable(name), printable(place->second.first->path().filename().string()),
                                            printable(path.filename().string())));
      }
    }
  }

  const std::pair<const SafetensorsFile*, const RawTensor*>& tensor(const std::string& name) const {
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      fail(ErrorKind::Format, fmt::format("{}: has no tensor {}", folder.string(), printable(name)));
    }
    return found->second;
  }

  fs::path folder;
  json config;
  std::vector<std::unique_ptr<SafetensorsFile>> shards;
  std::map<std::string, std::pair<const SafetensorsFile*, const RawTensor*>> tensors;
};

HfFolder::HfFolder(const fs::path& folder) : impl_(std::make_unique<Impl>(folder)) {}
HfFolder::~HfFolder() = default;

const fs::path& HfFolder::path() const { return impl_->folder; }
const json& HfFolder::config() const { return impl_->config; }

std::vector<fs::path> HfFolder::model_files() const {
  std::vector<fs::path> files{impl_->folder / "config.json"};
  for (const auto& shard : impl_->shards) files.push_back(shard->path());
  std::sort(files.begin(), files.end());
  return files;
}

const TensorInfo* HfFolder::find(const std::string& name) const {
  const auto found = impl_->tensors.find(name);
  return found == impl_->tensors.end() ? nullptr : &found->second.second->info;
}

std::vector<std::string> HfFolder::names() const {
  std::vector<std::string> names;
  names.reserve(impl_->tensors.size());
  for (const auto& [name, tensor] : impl_->tensors) names.push_back(name);
  return names;
}

void HfFolder::read_rows(const std::string& name, std::int64_t first_row, std::int64_t rows,
                         std::span<float> out) const {
  const auto& [shard, tensor] = impl_->tensor(name);
  shard->read_rows(*tensor, first_row, rows, out);
}

void HfFolder::release(const std::string& name) const {
  const auto& [shard, tensor] = impl_->tensor(name);
  shard->release(*tensor);
}

}  // namespace kvq
