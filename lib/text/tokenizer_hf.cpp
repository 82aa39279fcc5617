// The tokenizer of a Hugging Face folder: tokenizer.json (format of the tokenizers library) and, beside it,
// tokenizer_config.json, chat_template.jinja, and special_tokens_map.json or config.json for the ids of BOS and EOS.

#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/core/mapped_file.h>
#include <kvq/formats/hf_folder.h>
#include <kvq/formats/printable.h>
#include <kvq/text/tokenizer_json.h>
#include <kvq/text/tokenizer_spec.h>
#include <kvq/text/utf8.h>

namespace kvq {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::int64_t kMostTokens = 1 << 24;  // a larger id is damage, not a vocabulary

class HfReader {
 public:
  explicit HfReader(const fs::path& folder) : folder_(folder), where_((folder / "tokenizer.json").string()) {
    if (!fs::exists(folder / "tokenizer.json")) {
      const bool sentencepiece = fs::exists(folder / "tokenizer.model");
      fail(ErrorKind::Input,
           fmt::format(
               "{}: has no tokenizer.json{}", folder.string(),
               sentencepiece ? " (tokenizer.model alone is not read; transformers' save_pretrained writes both)" : ""));
    }
  }

  TokenizerSpec read() {
    const json file = read_json_file(where_);
    const json config = optional_file("tokenizer_config.json");
    try {
      const auto part = [&](const char* name) { return file.contains(name) ? file[name] : json(); };
      const json& model = require_bpe(file);
      read_normalizer(part("normalizer"), where_, spec_);
      read_pre_tokenizer(part("pre_tokenizer"), where_, spec_);
      read_decoder(part("decoder"), where_, spec_);
      read_post_processor(part("post_processor"), where_, spec_);
      read_tokens(model, part("added_tokens"));
    } catch (const json::exception& error) {
      damaged(where_, error.what());
    }
    try {
      read_config_tokens(config);
      finish_tokens();
      read_config(config);
    } catch (const json::exception& error) {
      damaged((folder_ / "tokenizer_config.json").string(), error.what());
    }
    try {
      read_model(file["model"]);
    } catch (const json::exception& error) {
      damaged(where_, error.what());
    }
    return std::move(spec_);
  }

 private:
  [[noreturn]] static void damaged(const std::string& where, const std::string& reason) {
    fail(ErrorKind::Format, fmt::format("{}: {}", where, reason));
  }

  json optional_file(const char* name) const {
    if (!fs::exists(folder_ / name)) return json::object();
    json content = read_json_file(folder_ / name);
    if (!content.is_object()) damaged((folder_ / name).string(), "is not a JSON object");
    return content;
  }

  const json& require_bpe(const json& file) const {
    if (!file.is_object() || !file.contains("model") || !file["model"].is_object())
      damaged(where_, "has no object \"model\"");
    const json& model = file["model"];
    const std::string type = model.value("type", model.contains("merges") ? "BPE" : "missing");
    if (type != "BPE") damaged(where_, fmt::format("model type {} is not supported; BPE is", printable(type)));
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.contains(affix) && !model[affix].is_null() && model[affix] != "") {
        damaged(where_, fmt::format("model.{} is not supported", affix));
      }
    }
    if (model.contains("dropout") && !model["dropout"].is_null() && model["dropout"] != 0.0) {
      damaged(where_, "model.dropout makes ids random and is not supported");
    }
    return model;
  }

  void read_tokens(const json& model, const json& added) {
    for (const auto& [token, id] : model.at("vocab").items()) put_token(id, token, where_);
    if (added.is_null()) return;
    for (const json& entry : added) put_added(entry.at("id"), entry, where_);
  }

  /// transformers lets added_tokens_decoder add tokens and override their flags.
  void read_config_tokens(const json& config) {
    if (!config.contains("added_tokens_decoder")) return;
    const std::string where = (folder_ / "tokenizer_config.json").string();
    for (const auto& [name, entry] : config["added_tokens_decoder"].items()) {
      if (name.empty() || name.size() > 8 || name.find_first_not_of("0123456789") != std::string::npos) {
        damaged(where, fmt::format("added_tokens_decoder has the key {}; a token id is needed", printable(name)));
      }
      put_added(json(std::stoll(name)), entry, where);
    }
  }

  void put_token(const json& id_field, const std::string& text, const std::string& where) {
    const auto id = id_field.is_number_integer() ? id_field.get<std::int64_t>() : -1;
    if (id < 0 || id >= kMostTokens) {
      damaged(where, fmt::format("token {} has the id {}; 0 to {} are allowed", printable(text), id_field.dump(),
                                 kMostTokens - 1));
    }
    const auto index = static_cast<std::size_t>(id);
    if (index >= spec_.tokens.size()) {
      spec_.tokens.resize(index + 1);
      spec_.used.resize(index + 1, false);
    }
    if (spec_.used[index] && spec_.tokens[index] != text) {
      damaged(where, fmt::format("token id {} is both {} and {}", id, printable(spec_.tokens[index]), printable(text)));
    }
    spec_.tokens[index] = text;
    spec_.used[index] = true;
  }

  void put_added(const json& id, const json& entry, const std::string& where) {
    AddedToken token;
    token.content = entry.at("content").get<std::string>();
    put_token(id, token.content, where);
    token.id = id.get<std::int32_t>();
    token.special = entry.value("special", false);
    token.single_word = entry.value("single_word", false);
    token.left_strip = entry.value("lstrip", false);
    token.right_strip = entry.value("rstrip", false);
    token.normalized = entry.value("normalized", !token.special);
    added_[token.id] = token;
  }

  void finish_tokens() {
    for (const auto& [id, token] : added_) spec_.added.push_back(token);
    ids_ = index_tokens(spec_, where_);
  }

  std::int32_t id_of(const std::string& token, const std::string& what) const {
    const auto entry = ids_.find(token);
    if (entry == ids_.end()) damaged(where_, fmt::format("{} {} is not in the vocabulary", what, printable(token)));
    return entry->second;
  }

  void read_model(const json& model) {
    const bool bytes = spec_.symbols == TokenizerSpec::Symbols::Bytes;
    const bool fallback = flag(model, "byte_fallback");
    if (bytes && fallback) damaged(where_, "model.byte_fallback together with ByteLevel is not supported");
    spec_.byte_ids.fill(-1);
    if (bytes || fallback) find_byte_tokens(spec_, ids_);
    spec_.ignore_merges = flag(model, "ignore_merges");
    spec_.fuse_unknown = flag(model, "fuse_unk");
    if (model.contains("unk_token") && !model["unk_token"].is_null()) {
      spec_.unknown_id = id_of(model["unk_token"].get<std::string>(), "model.unk_token");
    }
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const json& merge : model.at("merges")) {
      if (merge.is_string()) {
        pairs.push_back(split_merge(merge.get<std::string>(), where_));
      } else if (merge.size() == 2) {
        pairs.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        damaged(where_, fmt::format("merge {} is neither \"left right\" nor a pair", pairs.size()));
      }
    }
    add_merges(spec_, pairs, ids_, where_);
  }

  static bool flag(const json& object, const char* name) {
    return object.contains(name) && !object[name].is_null() && object[name].get<bool>();
  }

  void read_config(const json& config) {
    const std::string where = (folder_ / "tokenizer_config.json").string();
    const bool prefix =
        spec_.prepend_mark || (spec_.metaspace && spec_.metaspace->prepend != Metaspace::Prepend::Never);
    if (config.contains("add_prefix_space") && config["add_prefix_space"].is_boolean() &&
        config["add_prefix_space"] != prefix) {
      damaged(where, fmt::format("add_prefix_space is {}; tokenizer.json says {}, and only that is supported",
                                 config["add_prefix_space"].dump(), prefix));
    }
    const std::optional<std::int32_t> template_bos = spec_.bos_id;
    spec_.bos_id = special_id(config, "bos");
    spec_.eos_id = special_id(config, "eos");
    if (config.contains("add_bos_token") && config["add_bos_token"].is_boolean()) {
      spec_.adds_bos = config["add_bos_token"].get<bool>();
    } else if (spec_.adds_bos) {
      spec_.bos_id = template_bos;
    }
    if (!spec_.bos_id) spec_.bos_id = template_bos;
    if (spec_.adds_bos && !spec_.bos_id) damaged(where, "add_bos_token is true, but there is no bos_token");
    for (const auto& id : {spec_.bos_id, spec_.eos_id}) {
      if (id && (*id < 0 || static_cast<std::size_t>(*id) >= spec_.tokens.size() ||
                 !spec_.used[static_cast<std::size_t>(*id)])) {
        damaged(folder_.string(), fmt::format("BOS or EOS has the id {}, which is not in the vocabulary of {} tokens",
                                              *id, spec_.tokens.size()));
      }
    }
    read_chat_template(config);
  }

  /// `which` is "bos" or "eos". A file that has the field decides, also with null.
  std::optional<std::int32_t> special_id(const json& config, const std::string& which) const {
    const std::string name = which + "_token";
    for (const json& file : {config, optional_file("special_tokens_map.json")}) {
      if (!file.contains(name)) continue;
      const json& token = file[name].is_object() ? file[name].at("content") : file[name];
      if (token.is_null()) return std::nullopt;
      return id_of(token.get<std::string>(), name);
    }
    const json model_config = optional_file("config.json");
    if (!model_config.contains(name + "_id")) return std::nullopt;
    const json& id = model_config[name + "_id"];
    const json& first = id.is_array() && !id.empty() ? id[0] : id;
    return first.is_number_integer() ? std::optional(first.get<std::int32_t>()) : std::nullopt;
  }

  void read_chat_template(const json& config) {
    const fs::path jinja = folder_ / "chat_template.jinja";
    if (fs::exists(jinja)) {  // transformers prefers it, too
      const MappedFile file(jinja);
      spec_.chat_template.assign(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
      if (first_invalid_utf8(spec_.chat_template) != std::string::npos) damaged(jinja.string(), "is not valid UTF-8");
    } else if (config.contains("chat_template") && config["chat_template"].is_array()) {
      for (const json& entry : config["chat_template"]) {
        if (entry.at("name") == "default") spec_.chat_template = entry.at("template").get<std::string>();
      }
    } else if (config.contains("chat_template") && !config["chat_template"].is_null()) {
      spec_.chat_template = config["chat_template"].get<std::string>();
    }
  }

  fs::path folder_;
  std::string where_;
  TokenizerSpec spec_;
  std::map<std::int32_t, AddedToken> added_;
  std::unordered_map<std::string, std::int32_t> ids_;
};

}  // namespace

TokenizerSpec tokenizer_spec_from_hf_folder(const fs::path& folder) { return HfReader(folder).read(); }

}  // namespace kvq
