#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/tool.h"
#include "kvq-eval/inspection.h"

#include <kvq/artifacts/quantizer_file.h>
#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/side_simulator.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq::apps {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLengths[] = {2048, 32768};

/// Codebooks of a side, its own or turbo's.
std::vector<std::vector<float>> codebooks_of(const SideQuantizer& side) {
  std::vector<std::vector<float>> books;
  for (const Codebook& codebook : side.codebooks) books.push_back(codebook.centroids);
  for (const LowerTier& tier : side.lower_tiers) {
    for (const Codebook& codebook : tier.codebooks) books.push_back(codebook.centroids);
  }
  if (side.turbo) {
    for (const TurboPart& part : side.turbo->parts) books.push_back(part.levels);
  }
  return books;
}

/// What turns the head vectors of a side.
std::string turbo_text(const TurboTables& tables) {
  std::string text;
  for (const TurboPart& part : tables.parts) {
    text +=
        fmt::format("{}{} channels at {} bits, {} rotation{}", text.empty() ? "" : "; ", part.dim(), part.bits,
                    part.rotation.is_matrix() ? "random" : "hadamard", part.sketch ? ", sketch of the residual" : "");
  }
  return text;
}

std::string levels_of(const SideQuantizer& side) {
  if (side.turbo) {
    std::string text;
    for (const TurboPart& part : side.turbo->parts)
      text += fmt::format("{}{}", text.empty() ? "" : " + ", part.levels.size());
    return text;
  }
  if (side.recipe.codebook == CodebookKind::Vector) {
    std::string text = fmt::format("{}", 1 << side.recipe.bits);
    if (side.recipe.vector.method == VectorMethod::Product) text += fmt::format(" × {}", side.recipe.vector.subspaces);
    if (side.vector_tables.size() > 1) text += fmt::format(" × {}", side.vector_tables.size());
    return text;
  }
  if (side.codebooks.empty()) return "fixed";  // q4_0, q8_0, fp8
  const std::vector<float>& levels = side.codebooks.front().centroids;
  if (side.recipe.widths == Widths::Pair)  // one codebook for each width that a channel may have
    return fmt::format("{} to {}", levels.size(), side.codebooks.back().centroids.size());
  std::string text = fmt::format("{}", levels.size());
  for (const LowerTier& tier : side.lower_tiers) text += fmt::format(", {}", 1 << tier.bits);
  if (side.codebooks.size() > 1) text += fmt::format(" × {}", side.codebooks.size());
  return text;
}

/// "4 bits, 25 % of the tokens; 2 bits, the rest"
std::string tiers_text(const TierRecipe& tiers, int high) {
  std::string text = fmt::format("{} bits, {:g} % of the tokens", high, 100 * tiers.high_share);
  if (tiers.mid != 0) text += fmt::format("; {} bits, {:g} %", tiers.mid, 100 * tiers.mid_share);
  const double rest = tiers.keep - tiers.high_share - tiers.mid_share;
  text += fmt::format("; {} {}, {}", tiers.low, tiers.low == 1 ? "bit" : "bits",
                      tiers.keep < 1.0 ? fmt::format("{:g} %", 100 * rest) : "the rest");
  if (tiers.keep < 1.0) text += fmt::format("; {:g} % dropped", 100 * (1.0 - tiers.keep));
  return text;
}

}  // namespace

Inspection inspect_quantizer(const std::filesystem::path& path, Json& json) {
  const QuantizerFile file = read_quantizer(path);
  const Quantizer& quantizer = file.quantizer;
  Inspection inspection;
  add_provenance(inspection, json, file.provenance, quantizer.shape);
  add_rope(inspection, json, quantizer.rope);
  const std::string recipe = short_form(quantizer.recipe);
  auto& facts = inspection.facts;
  facts.emplace_back("recipe", recipe);
  std::string toml = recipe_to_toml(quantizer.recipe);
  toml.erase(toml.find_last_not_of('\n') + 1);
  facts.emplace_back("", toml);
  json["recipe"] = recipe;
  json["recipe_toml"] = recipe_to_toml(quantizer.recipe);
  facts.emplace_back("bits", fmt::format("{:g} nominal", nominal_bits(quantizer.recipe, quantizer.shape.head_dim)));
  json["bits_nominal"] = nominal_bits(quantizer.recipe, quantizer.shape.head_dim);
  json["bits_counted"] = Json::object();
  if (quantizer.recipe.is_oracle()) {
    facts.back().second += "; an oracle, no cache: nothing to count";
  } else {
    for (const std::int64_t tokens : kLengths) {
      const double bits = forecast_footprint(quantizer, tokens).bits_per_value(quantizer.shape, tokens);
      facts.back().second += fmt::format(", {:.4g} counted at {} tokens", bits, tokens);
      json["bits_counted"][std::to_string(tokens)] = bits;
    }
    facts.emplace_back("tables", human_bytes(static_cast<double>(table_bytes(quantizer))));
    json["table_bytes"] = table_bytes(quantizer);
  }
  facts.emplace_back("fingerprints", fmt::format("{} passages of the calibration text", file.fingerprints.size()));
  json["fingerprints"] = file.fingerprints.size();

  if (quantizer.recipe.tiered()) {
    const std::string text = tiers_text(quantizer.recipe.tiers, quantizer.recipe.key.bits);
    facts.emplace_back("tiers", text);
    json["tiers"] = text;
  }
  for (const Side side : kSides) {
    if (quantizer.layers.empty() || !quantizer.layers.front().side(side).turbo) continue;
    const std::string text = turbo_text(*quantizer.layers.front().side(side).turbo);
    facts.emplace_back("turbo", fmt::format("{}: {}", side_name(side), text));
    json["turbo"][side_name(side)] = text;
  }

  for (const Side side : kSides) {
    const SideRecipe& part = quantizer.recipe.side(side);
    if (quantizer.layers.empty() || part.codebook != CodebookKind::Vector) continue;
    facts.emplace_back("codec", fmt::format("{}: {}", side_name(side), long_form(part.vector)));
    json["codec"][side_name(side)] = long_form(part.vector);
  }

  Table table{{"layer", "side", "lowest", "highest", "median width", "constant", "levels", "first", "last",
               "outliers %", "exponent"},
              {}};
  json["layer"] = Json::array();
  for (std::size_t layer = 0; layer < quantizer.layers.size(); ++layer) {
    Json entry = Json::object();
    for (const Side which : kSides) {
      const SideQuantizer& side = quantizer.layers[layer].side(which);
      const SideSimulator has_the_right_sizes(side);
      std::vector<float> widths;
      double lowest = INFINITY, highest = -INFINITY;
      for (std::size_t channel = 0; channel < side.lower.size(); ++channel) {
        widths.push_back(side.upper[channel] - side.lower[channel]);
        lowest = std::min<double>(lowest, side.lower[channel]);
        highest = std::max<double>(highest, side.upper[channel]);
      }
      const auto constant = std::count(widths.begin(), widths.end(), 0.0f);
      const bool ranges = !widths.empty();
      if (ranges)
        std::nth_element(widths.begin(), widths.begin() + static_cast<std::ptrdiff_t>(widths.size() / 2), widths.end());
      const auto if_ranges = [&](const std::string& text) { return ranges ? text : std::string("–"); };
      const std::vector<std::vector<float>> books = codebooks_of(side);
      const bool has_levels = !books.empty() && !books.front().empty();
      const auto end_level = [&](bool first) {
        if (!has_levels) return std::string("–");
        return short_number(first ? books.front().front() : books.front().back());
      };
      table.rows.push_back({std::to_string(layer), side_name(which), if_ranges(short_number(lowest)),
                            if_ranges(short_number(highest)),
                            if_ranges(ranges ? short_number(widths[widths.size() / 2]) : ""),
                            if_ranges(std::to_string(constant)), levels_of(side), end_level(true), end_level(false),
                            short_number(100 * side.outlier_rate), std::to_string(side.exponent)});
      entry[side_name(which)] = {{"codebooks", books},
                                 {"outlier_rate", side.outlier_rate},
                                 {"exponent", side.exponent},
                                 {"constant_channels", constant}};
      if (ranges) {
        entry[side_name(which)]["lowest_threshold"] = lowest;
        entry[side_name(which)]["highest_threshold"] = highest;
      }
    }
    json["layer"].push_back(std::move(entry));
  }
  inspection.tables.push_back(std::move(table));
  return inspection;
}

}  // namespace kvq::apps
