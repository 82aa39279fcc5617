#pragma once
// Tables of the codecs of head vectors in a quantizer file (FORMAT.md, Quantizer), of one layer and side.

#include <kvq/artifacts/internal/h5.h>
#include <kvq/quant/quantizer.h>

namespace kvq {

/// Nothing for other codebooks.
void write_codec_tables(const h5::Group& group, const SideQuantizer& side);
/// From the recipe and shape that are there already. Throws Format, naming the dataset, for tables that no codec of the
/// recipe has.
void read_codec_tables(const h5::Group& group, SideQuantizer& side);

}  // namespace kvq
