#include "kvq-fit/report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <kvq/quant/footprint.h>
#include <kvq/report/table.h>

namespace kvq::apps {

namespace {

constexpr std::int64_t kShort = 2048, kLong = 32768;

double counted_bits(const Quantizer& quantizer, std::int64_t tokens) {
  return forecast_footprint(quantizer, tokens).bits_per_value(quantizer.shape, tokens);
}

// An oracle is no cache: it has no counted bits.
std::string counted_text(const Quantizer& quantizer, std::int64_t tokens) {
  return quantizer.recipe.is_oracle() ? "oracle" : fmt::format("{:.3f}", counted_bits(quantizer, tokens));
}
nlohmann::ordered_json counted_json(const Quantizer& quantizer, std::int64_t tokens) {
  return quantizer.recipe.is_oracle() ? nlohmann::ordered_json()
                                      : nlohmann::ordered_json(counted_bits(quantizer, tokens));
}

// Block formats fit nothing.
std::string error_text(double error) { return std::isnan(error) ? "-" : fmt::format("{:.3g}", error); }
nlohmann::ordered_json error_json(double error) {
  return std::isnan(error) ? nlohmann::ordered_json() : nlohmann::ordered_json(error);
}

}  // namespace

std::string fits_as_text(const std::vector<Fitted>& fits) {
  Table table;
  table.header = {"recipe", "nominal bits", "bits at 2048", "bits at 32K", "key error", "value error", "file"};
  for (const Fitted& fit : fits) {
    table.rows.push_back({short_form(fit.quantizer.recipe),
                          fmt::format("{:.2f}", nominal_bits(fit.quantizer.recipe, fit.quantizer.shape.head_dim)),
                          counted_text(fit.quantizer, kShort), counted_text(fit.quantizer, kLong),
                          error_text(fit.report.error[0]), error_text(fit.report.error[1]), fit.file.string()});
  }
  return to_text(table);
}

std::string fits_as_json(const std::vector<Fitted>& fits) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Fitted& fit : fits) {
    list.push_back({{"recipe", short_form(fit.quantizer.recipe)},
                    {"file", fit.file.string()},
                    {"bits_nominal", nominal_bits(fit.quantizer.recipe, fit.quantizer.shape.head_dim)},
                    {"bits_counted", counted_json(fit.quantizer, kShort)},
                    {"bits_counted_32k", counted_json(fit.quantizer, kLong)},
                    {"table_bytes", table_bytes(fit.quantizer)},
                    {"error_key", error_json(fit.report.error[0])},
                    {"error_value", error_json(fit.report.error[1])}});
  }
  return nlohmann::ordered_json({{"fits", std::move(list)}}).dump(2);
}

}  // namespace kvq::apps
