#include "kvq-eval/parts.h"

#include <charconv>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq::apps {

namespace {

constexpr const char* kEach = "each";

[[noreturn]] void refuse(const std::string& value, const std::string& reason) {
  fail(ErrorKind::Usage,
       fmt::format("--only-layers {}: {}; layers and ranges separated by commas (0,4-7) or 'each' are needed",
                   shortened(value), reason));
}

int number(const std::string& text, const std::string& value) {
  int result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (error != std::errc() || end != text.data() + text.size() || result < 0)
    refuse(value, fmt::format("'{}' is no layer", shortened(text)));
  return result;
}

std::vector<int> layer_list(const std::string& value, int layers) {
  std::set<int> chosen;
  std::istringstream items(value);
  for (std::string item; std::getline(items, item, ',');) {
    const auto dash = item.find('-');
    const int first = number(item.substr(0, dash), value);
    const int last = dash == std::string::npos ? first : number(item.substr(dash + 1), value);
    if (last < first) refuse(value, fmt::format("'{}' ends before it begins", shortened(item)));
    if (last >= layers) refuse(value, fmt::format("the model has layers 0 to {}", layers - 1));
    for (int layer = first; layer <= last; ++layer) {
      if (!chosen.insert(layer).second) refuse(value, fmt::format("layer {} is given twice", layer));
    }
  }
  if (chosen.empty() || value.back() == ',') refuse(value, "a layer is missing");
  return {chosen.begin(), chosen.end()};
}

std::string part_name(const CacheParts& parts, const std::string& layers) {
  std::string text;
  if (parts.layers.size() == 1) {
    text = fmt::format("layer {}", parts.layers.front());
  } else if (!parts.layers.empty()) {
    text = "layers " + layers;
  }
  if (parts.side) text += std::string(text.empty() ? "" : " ") + side_name(*parts.side);
  return text;
}

}  // namespace

void add_part_options(CLI::App& command, PartOptions& options) {
  command.add_option("--only-layers", options.layers,
                     "quantize these layers only (0,4-7); each: one row per layer; nothing is counted then");
  command.add_option("--only-side", options.side, "quantize keys or values only; each: one row per side")
      ->check(CLI::IsMember({"key", "value", kEach}));
}

void check_layer_list(const std::string& value, int layers) {
  if (!value.empty() && value != kEach) layer_list(value, layers);
}

void select_parts(const PartOptions& options, const InputOptions& input_options, Inputs& inputs) {
  if (options.layers.empty() && options.side.empty()) return;
  const std::string flag = options.layers.empty() ? "--only-side" : "--only-layers";
  if (input_options.cache != "simulated")
    fail(ErrorKind::Usage,
         fmt::format("{} needs --cache simulated: a {} cache holds all layers and sides", flag, input_options.cache));
  if (!input_options.weights.empty())
    fail(ErrorKind::Usage, fmt::format("{} does not go with --weights: parts are judged with the model's own", flag));
  if (inputs.quantizers.empty()) fail(ErrorKind::Usage, fmt::format("{} needs a --quantizer", flag));
  for (const NamedQuantizer& named : inputs.quantizers) {
    if (named.quantizer && named.quantizer->recipe.evicts() && !options.side.empty())
      fail(ErrorKind::Usage,
           fmt::format("--only-side cannot go with '{}', which evicts keys and values together", named.name));
    if (named.quantizer && named.quantizer->recipe.tiered() && !options.side.empty())
      fail(ErrorKind::Usage,
           fmt::format("--only-side cannot go with '{}', whose keys and values have the same tiers", named.name));
  }
  const int layers = inputs.model->config().kv.layers;
  std::vector<std::vector<int>> layer_sets = {{}};
  if (options.layers == kEach) {
    layer_sets.clear();
    for (int layer = 0; layer < layers; ++layer) layer_sets.push_back({layer});
  } else if (!options.layers.empty()) {
    layer_sets = {layer_list(options.layers, layers)};
  }
  std::vector<std::optional<Side>> sides = {std::nullopt};
  if (options.side == kEach) sides = {Side::Key, Side::Value};
  if (options.side == "key") sides = {Side::Key};
  if (options.side == "value") sides = {Side::Value};

  std::vector<NamedQuantizer> parts;
  std::vector<std::vector<std::uint64_t>> fingerprints;
  for (std::size_t index = 0; index < inputs.quantizers.size(); ++index) {
    for (const auto& side : sides) {
      for (const std::vector<int>& set : layer_sets) {
        NamedQuantizer part = inputs.quantizers[index];
        part.parts = {set, side};
        part.name += fmt::format(" [{}]", part_name(part.parts, options.layers));
        parts.push_back(std::move(part));
        // One warning for a quantizer is enough.
        fingerprints.push_back(parts.size() == 1 || parts[parts.size() - 2].quantizer != parts.back().quantizer
                                   ? inputs.fingerprints[index]
                                   : std::vector<std::uint64_t>{});
      }
    }
  }
  inputs.quantizers = std::move(parts);
  inputs.fingerprints = std::move(fingerprints);
}

}  // namespace kvq::apps
