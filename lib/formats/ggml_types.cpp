#include <array>

#include <kvq/formats/dequantize.h>
#include <kvq/formats/ggml_type_names.h>

namespace kvq {
namespace {

constexpr std::array<GgmlTypeTraits, 31> make_traits() {
  std::array<GgmlTypeTraits, 31> traits{};
  const auto set = [&](GgmlType type, GgmlTypeTraits value) { traits[static_cast<std::uint32_t>(type)] = value; };
  set(GgmlType::F32, {"F32", 1, 4});
  set(GgmlType::F16, {"F16", 1, 2});
  set(GgmlType::BF16, {"BF16", 1, 2});
  set(GgmlType::Q4_0, {"Q4_0", 32, 18});
  set(GgmlType::Q4_1, {"Q4_1", 32, 20});
  set(GgmlType::Q5_0, {"Q5_0", 32, 22});
  set(GgmlType::Q5_1, {"Q5_1", 32, 24});
  set(GgmlType::Q8_0, {"Q8_0", 32, 34});
  set(GgmlType::IQ4_NL, {"IQ4_NL", 32, 18});
  set(GgmlType::Q2_K, {"Q2_K", 256, 84});
  set(GgmlType::Q3_K, {"Q3_K", 256, 110});
  set(GgmlType::Q4_K, {"Q4_K", 256, 144});
  set(GgmlType::Q5_K, {"Q5_K", 256, 176});
  set(GgmlType::Q6_K, {"Q6_K", 256, 210});
  return traits;
}

constexpr auto kTraits = make_traits();

// ggml's numbering.
constexpr const char* kNames[] = {"F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
                                  "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
                                  "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
                                  "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
                                  "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
                                  "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0"};

}  // namespace

const GgmlTypeTraits* ggml_type_traits(std::uint32_t type) {
  return type < kTraits.size() && kTraits[type].name ? &kTraits[type] : nullptr;
}

const char* ggml_type_name(std::uint32_t type) { return type < std::size(kNames) ? kNames[type] : nullptr; }

const char* supported_ggml_types() {
  return "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL";
}

}  // namespace kvq
