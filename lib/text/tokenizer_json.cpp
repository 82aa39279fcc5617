#include <kvq/text/tokenizer_json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/core/error.h>
#include <kvq/formats/printable.h>

namespace kvq {

using nlohmann::json;

namespace {

[[noreturn]] void refuse(const std::string& where, const char* part, const std::string& reason) {
  fail(ErrorKind::Format, fmt::format("{}: {} {}", where, part, reason));
}

std::string type_of(const json& component, const std::string& where, const char* part) {
  if (!component.is_object() || !component.contains("type") || !component["type"].is_string()) {
    refuse(where, part, "is not an object with a \"type\"");
  }
  return component["type"].get<std::string>();
}

/// The component, or the components of a Sequence, in order.
std::vector<json> flattened(const json& component, const std::string& where, const char* part, const char* list) {
  if (component.is_null()) return {};
  if (type_of(component, where, part) != "Sequence") return {component};
  std::vector<json> all;
  for (const json& inner : component.at(list)) {
    for (json& entry : flattened(inner, where, part, list)) all.push_back(std::move(entry));
  }
  return all;
}

/// True for {"pattern": {"String": from}, "content": to}.
bool replaces(const json& component, std::string_view from, std::string_view to) {
  return component.at("pattern").contains("String") && component["pattern"]["String"] == from &&
         component.at("content") == to;
}

SplitStage read_split(const json& component, const std::string& where) {
  SplitStage stage;
  const json& pattern = component.at("pattern");
  stage.literal = pattern.contains("String");
  stage.pattern = pattern.at(stage.literal ? "String" : "Regex").get<std::string>();
  if (stage.pattern.empty()) refuse(where, "pre_tokenizer Split", "has an empty pattern");
  const auto behavior = component.at("behavior").get<std::string>();
  const bool invert = boolean_of(component, "invert", false, where);
  if (behavior == "Removed") {
    stage.keep = invert ? SplitStage::Keep::Matches : SplitStage::Keep::Gaps;
  } else if (behavior != "Isolated") {
    refuse(
        where, "pre_tokenizer Split",
        fmt::format("with behavior {} is not supported; supported are 'Isolated' and 'Removed'", printable(behavior)));
  }
  try {
    const SplitPattern compiled(stage);
  } catch (const Error& error) {  // its message does not know the file
    fail(error.kind(), fmt::format("{}: {}", where, error.what()));
  }
  return stage;
}

Metaspace read_metaspace(const json& component, const std::string& where) {
  if (component.at("replacement") != kBlankMark) refuse(where, "Metaspace", "has a replacement other than U+2581");
  Metaspace metaspace;
  metaspace.split = boolean_of(component, "split", true, where);
  // Files from before prepend_scheme have add_prefix_space alone.
  const std::string otherwise = boolean_of(component, "add_prefix_space", true, where) ? "always" : "never";
  const std::string scheme = component.value("prepend_scheme", otherwise);
  if (scheme == "always") {
    metaspace.prepend = Metaspace::Prepend::Always;
  } else if (scheme == "first") {
    metaspace.prepend = Metaspace::Prepend::First;
  } else if (scheme == "never") {
    metaspace.prepend = Metaspace::Prepend::Never;
  } else {
    refuse(where, "Metaspace", fmt::format("has the unknown prepend_scheme {}", printable(scheme)));
  }
  return metaspace;
}

}  // namespace

bool boolean_of(const json& object, const char* field, bool otherwise, const std::string& where) {
  if (!object.contains(field)) return otherwise;
  const json& value = object[field];
  if (!value.is_boolean())
    fail(ErrorKind::Format, fmt::format("{}: \"{}\" is {}, neither true nor false", where, field, value.dump()));
  return value.get<bool>();
}

void read_normalizer(const json& component, const std::string& where, TokenizerSpec& spec) {
  for (const json& step : flattened(component, where, "normalizer", "normalizers")) {
    const std::string type = type_of(step, where, "normalizer");
    if (type == "NFC") {
      spec.nfc = true;
    } else if (type == "Prepend" && step.at("prepend") == kBlankMark) {
      spec.prepend_mark = true;
    } else if (type == "Replace" && replaces(step, " ", kBlankMark)) {
      spec.replace_blanks = true;
    } else {
      refuse(where, "normalizer",
             fmt::format("{} is not supported; supported are NFC, Prepend U+2581 and Replace \" \" by U+2581",
                         printable(type)));
    }
  }
}

void read_pre_tokenizer(const json& component, const std::string& where, TokenizerSpec& spec) {
  bool byte_level = false;
  for (const json& step : flattened(component, where, "pre_tokenizer", "pretokenizers")) {
    const std::string type = type_of(step, where, "pre_tokenizer");
    if (byte_level) refuse(where, "pre_tokenizer", fmt::format("{} after ByteLevel is not supported", printable(type)));
    if (type == "ByteLevel") {
      if (boolean_of(step, "add_prefix_space", true, where))
        refuse(where, "pre_tokenizer ByteLevel", "with add_prefix_space is not supported");
      if (boolean_of(step, "use_regex", true, where)) spec.splits.push_back({kGpt2Pattern});
      byte_level = true;
    } else if (type == "Digits") {
      spec.splits.push_back({boolean_of(step, "individual_digits", false, where) ? R"(\p{N})" : R"(\p{N}+)"});
    } else if (type == "Split" && spec.replace_blanks && step.at("pattern").contains("String") &&
               step["pattern"]["String"] == " ") {
      // Gemma's: the normalizer has left no blank to split at.
    } else if (type == "Split") {
      spec.splits.push_back(read_split(step, where));
    } else if (type == "Metaspace" && !spec.metaspace) {
      spec.metaspace = read_metaspace(step, where);
    } else {
      refuse(where, "pre_tokenizer",
             fmt::format("{} is not supported; supported are ByteLevel, Digits, Split, Metaspace and Sequence",
                         printable(type)));
    }
  }
  const bool marks = spec.metaspace || spec.replace_blanks;
  if (byte_level == marks) {
    refuse(where, "pre_tokenizer",
           byte_level ? "ByteLevel together with SentencePiece's blanks (U+2581) is not supported"
                      : "without ByteLevel or SentencePiece's blanks (U+2581) is not supported");
  }
  if (marks && !spec.splits.empty())
    refuse(where, "pre_tokenizer", "with Split or Digits and SentencePiece's blanks is not supported");
  spec.symbols = byte_level ? TokenizerSpec::Symbols::Bytes : TokenizerSpec::Symbols::Characters;
}

void read_decoder(const json& component, const std::string& where, TokenizerSpec& spec) {
  const bool bytes = spec.symbols == TokenizerSpec::Symbols::Bytes;
  const std::vector<json> steps = flattened(component, where, "decoder", "decoders");
  if (steps.empty() && !bytes) refuse(where, "decoder", "is missing");
  for (const json& step : steps) {
    const std::string type = type_of(step, where, "decoder");
    if (bytes ? type == "ByteLevel" : type == "ByteFallback" || type == "Fuse") continue;
    if (!bytes && type == "Replace" && replaces(step, kBlankMark, " ")) continue;
    if (!bytes && type == "Strip" && step.at("content") == " " && step.at("start") == 1 && step.at("stop") == 0) {
      spec.strip_first_blank = true;
    } else if (!bytes && type == "Metaspace") {
      spec.strip_first_blank = read_metaspace(step, where).prepend != Metaspace::Prepend::Never;
    } else {
      refuse(where, "decoder", fmt::format("{} is not supported for this kind of tokenizer", printable(type)));
    }
  }
}

void read_post_processor(const json& component, const std::string& where, TokenizerSpec& spec) {
  for (const json& step : flattened(component, where, "post_processor", "processors")) {
    const std::string type = type_of(step, where, "post_processor");
    if (type == "ByteLevel") continue;  // concerns offsets only
    if (type != "TemplateProcessing") {
      refuse(where, "post_processor",
             fmt::format("{} is not supported; supported are TemplateProcessing and ByteLevel", printable(type)));
    }
    for (const json& piece : step.at("single")) {
      if (!piece.contains("SpecialToken")) break;  // the text itself
      const auto name = piece["SpecialToken"].at("id").get<std::string>();
      const json& ids = step.at("special_tokens").at(name).at("ids");
      if (spec.adds_bos || ids.size() != 1) {
        refuse(where, "post_processor", "puts more than one token before the text, which is not supported");
      }
      spec.bos_id = ids[0].get<std::int32_t>();
      spec.adds_bos = true;
    }
  }
}

}  // namespace kvq
