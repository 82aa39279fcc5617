#include <kvq/artifacts/internal/tier_datasets.h>

#include <fmt/format.h>

#include <kvq/artifacts/internal/rounding_datasets.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

std::string tier_group(int bits) { return fmt::format("tier_{}", bits); }

}  // namespace

void write_tiers(const h5::Group& group, const SideQuantizer& side) {
  for (std::size_t tier = 0; tier < side.lower_tiers.size(); ++tier) {
    write_codebooks(group.create_group(tier_group(side.lower_tiers[tier].bits)),
                    tier_side(side, static_cast<int>(tier) + 1));
  }
}

void read_tiers(const h5::Group& group, const TierRecipe& tiers, SideQuantizer& side) {
  for (const int bits : lower_tier_bits(tiers)) {
    SideQuantizer lower;
    lower.recipe = side.recipe;
    lower.recipe.bits = bits;
    lower.kv_heads = side.kv_heads, lower.head_dim = side.head_dim;
    read_codebooks(group.open_group(tier_group(bits)), lower);
    side.lower_tiers.push_back({bits, std::move(lower.codebooks)});
  }
}

}  // namespace kvq
