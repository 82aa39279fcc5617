#pragma once
// What all artifacts have in common: root attributes, the shape of the cache, the number of layers (FORMAT.md).

#include <string>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/internal/h5.h>
#include <kvq/artifacts/provenance.h>
#include <kvq/core/block_matrix.h>
#include <kvq/core/kv_shape.h>

namespace kvq::schema {

/// A reader takes every minor version of its major version: minor versions only add.
inline constexpr int kMajor = 1, kMinor = 8;

void write_provenance(const h5::Group& root, const std::string& schema, const Provenance& provenance);
/// Last thing written: a file without it was never finished.
void write_complete(const h5::Group& root);
void write_shape(const h5::Group& root, const KvShape& shape);
void write_rope(const h5::Group& root, const ModelRope& rope);

/// Checks `kvq_schema`, `schema_version` and `complete` before anything else is looked at. Throws Format, or Mismatch
/// for an artifact of another kind.
Provenance read_provenance(const h5::Group& root, const std::string& schema);
KvShape read_shape(const h5::Group& root);
ModelRope read_rope(const h5::Group& root, const KvShape& shape);

/// Provenance, shapes, and the sample: tokens, domains, losses, BOS. Everything but the layers.
void write_sample(const h5::Group& root, const std::string& schema, const CalibrationHeader& header);
CalibrationHeader read_sample(const h5::Group& root, const std::string& schema);

/// The cache's shape, `hidden` and `intermediate`. Reading checks that every matrix has a possible size.
void write_block_sizes(const h5::Group& root, const BlockShape& shape);
BlockShape read_block_shape(const h5::Group& root, const KvShape& kv);

/// "00", "01", … : layers sort by name.
std::string layer_name(int layer);

/// Throws Format naming dataset and position of the first NaN or Inf.
void require_finite(const h5::Group& group, const std::string& name, const h5::Shape& shape,
                    std::span<const float> data);
void require_finite(const h5::Group& group, const std::string& name, const h5::Shape& shape,
                    std::span<const double> data);
/// Attribute `scale` of a dataset of fp16: a power of two by which they can be multiplied. Throws Format.
float read_scale(const h5::Group& group, const std::string& name);
/// Throws Format where lower > upper.
void require_ordered(const h5::Group& group, const std::string& lower, const std::string& upper, const h5::Shape& shape,
                     std::span<const float> low, std::span<const float> high);
/// "[3, 0, 17]" of a flat index.
std::string position(const h5::Shape& shape, std::uint64_t flat);

}  // namespace kvq::schema
