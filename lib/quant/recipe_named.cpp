#include <kvq/quant/recipe_named.h>

#include <fmt/format.h>

#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/recipe_words.h>

namespace kvq {

namespace {

constexpr int kKiviGroup = 32, kKiviResidual = 128, kAtomGroup = 128, kFlexGenGroup = 64;

SideRecipe uniform(Side which, int bits, Axis axis, int group) {
  SideRecipe side = usual_side(which, CodebookKind::Int);
  side.bits = bits;
  side.axis = axis;
  side.range = RangeKind::Online;
  side.group = group;
  return side;
}

NamedMethod kivi(int bits) {
  NamedMethod method{uniform(Side::Key, bits, Axis::ChannelGroup, kKiviGroup),
                     uniform(Side::Value, bits, Axis::TokenGroup, kKiviGroup)};
  method.key.post_rope = true;
  method.key.flush = kKiviResidual;
  method.value.recent = kKiviResidual;
  method.residual = true;
  return method;
}

NamedMethod atom(int bits) {
  NamedMethod method{uniform(Side::Key, bits, Axis::TokenGroup, kAtomGroup),
                     uniform(Side::Value, bits, Axis::TokenGroup, kAtomGroup)};
  method.key.integer_zero = method.value.integer_zero = true;
  return method;
}

NamedMethod flexgen(int bits) {
  NamedMethod method{uniform(Side::Key, bits, Axis::TokenGroup, kFlexGenGroup),
                     uniform(Side::Value, bits, Axis::TokenGroup, kFlexGenGroup)};
  method.key.post_rope = true;
  return method;
}

NamedMethod turbo(int bits) {
  NamedMethod method{usual_side(Side::Key, CodebookKind::Turbo), usual_side(Side::Value, CodebookKind::Turbo)};
  method.key.bits = method.value.bits = bits;
  return method;
}

/// Fitted to a calibration, unlike the others: one sink, as KVQuant.
NamedMethod vector_method(std::string_view name) {
  NamedMethod method{usual_side(Side::Key, CodebookKind::Vector), usual_side(Side::Value, CodebookKind::Vector)};
  method.sinks = Recipe{}.sinks;
  for (SideRecipe* side : {&method.key, &method.value}) {
    side->vector = parse_vector_recipe(std::string(name));
    side->bits = side->vector.bits;
    side->share = usual_share(*side);
  }
  return method;
}

NamedMethod block_format(CodebookKind kind) {
  NamedMethod method{usual_side(Side::Key, kind), usual_side(Side::Value, kind)};
  method.key.post_rope = true;
  return method;
}

}  // namespace

std::optional<NamedMethod> find_named_method(std::string_view name) {
  if (const auto kind = find_word(kCodebookWords, name); kind && is_block_format(*kind)) return block_format(*kind);
  if (is_vector_head(name)) return vector_method(name);
  if (name.empty() || name.back() < '1' || name.back() > '8') return std::nullopt;
  const int bits = name.back() - '0';
  const std::string_view family = name.substr(0, name.size() - 1);
  if (family == "kivi") return kivi(bits);
  if (family == "atom") return atom(bits);
  if (family == "flexgen") return flexgen(bits);
  if (family == "turbo") return turbo(bits);
  return std::nullopt;
}

const std::vector<std::string>& named_methods() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"q4_0", "q8_0", "fp8", "pq"};
    for (const char* family : {"kivi", "atom", "flexgen", "turbo", "scalar", "delta"}) {
      for (int bits = 1; bits <= 8; ++bits) all.push_back(fmt::format("{}{}", family, bits));
    }
    return all;
  }();
  return names;
}

}  // namespace kvq
