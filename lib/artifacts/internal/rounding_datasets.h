#pragma once
// Codebooks and tables of one side of a quantizer file, whatever its recipe (FORMAT.md, Quantizer).

#include <kvq/artifacts/internal/h5.h>
#include <kvq/core/kv_shape.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

void write_codebooks(const h5::Group& group, const SideQuantizer& side);
/// Throws Format, naming the dataset, for NaN/Inf, wrong shapes and centroids that do not ascend.
void read_codebooks(const h5::Group& group, SideQuantizer& side);

/// Widths, scale of the rotation, feedback.
void write_rounding(const h5::Group& group, const SideQuantizer& side);
void read_rounding(const h5::Group& group, SideQuantizer& side);

}  // namespace kvq
