#pragma once
// Tables of turbo in a quantizer file (FORMAT.md, Quantizer): `/turbo/S` once for all layers, and the outlier channels
// of each.

#include <array>
#include <memory>

#include <kvq/artifacts/internal/h5.h>
#include <kvq/quant/quantizer.h>
#include <kvq/vector/turbo_codec.h>

namespace kvq {

using TurboBySide = std::array<std::shared_ptr<const TurboTables>, 2>;  ///< by Side; null where there is none

void write_turbo(const h5::Group& root, const Quantizer& quantizer);
/// From the recipe and shape that are there already. Throws Format, naming the dataset, for NaN/Inf, wrong shapes,
/// rotations that are none, and levels that do not ascend.
TurboBySide read_turbo(const h5::Group& root, const Quantizer& quantizer);

void write_outlier_channels(const h5::Group& group, const SideQuantizer& side);
void read_outlier_channels(const h5::Group& group, SideQuantizer& side);

}  // namespace kvq
