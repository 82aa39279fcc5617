#include <kvq/artifacts/weight_fisher_file.h>

#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/hash.h>

namespace kvq {

namespace {

h5::Shape matrix_shape(const BlockShape& shape, BlockMatrix matrix) {
  return {static_cast<std::uint64_t>(shape.rows(matrix)), static_cast<std::uint64_t>(shape.columns(matrix))};
}

}  // namespace

struct WeightFisherWriter::Impl {
  AtomicFile target;
  h5::File file;
  std::optional<h5::Group> root, layers, group;
  BlockShape shape;
  std::size_t next = 0;  ///< matrix, all layers

  Impl(const std::filesystem::path& path, bool force)
      : target(path, force), file(h5::File::create(target.temporary(), path.string())) {}
};

WeightFisherWriter::WeightFisherWriter(const std::filesystem::path& path, bool force)
    : impl_(std::make_unique<Impl>(path, force)) {}
WeightFisherWriter::~WeightFisherWriter() = default;

void WeightFisherWriter::write_header(const CalibrationHeader& header, const BlockShape& shape) {
  KVQ_ASSERT(header.shape == shape.kv);
  impl_->shape = shape;
  impl_->root = impl_->file.root();
  schema::write_sample(*impl_->root, "weight-fisher", header);
  schema::write_block_sizes(*impl_->root, shape);
  impl_->layers = impl_->root->create_group("layers");
}

void WeightFisherWriter::write_matrix(int layer, BlockMatrix matrix, const ScaledHalf& roots) {
  KVQ_ASSERT(impl_->layers &&
             static_cast<std::size_t>(layer) * kBlockMatrices.size() + static_cast<std::size_t>(matrix) ==
                 impl_->next++);
  if (matrix == kBlockMatrices.front()) impl_->group = impl_->layers->create_group(schema::layer_name(layer));
  const char* name = block_matrix_name(matrix);
  impl_->group->write(name, matrix_shape(impl_->shape, matrix), h5::as_halves(roots.values));
  impl_->group->set_on(name, "scale", roots.scale);
}

void WeightFisherWriter::finish() {
  KVQ_ASSERT(impl_->next == kBlockMatrices.size() * static_cast<std::size_t>(impl_->shape.kv.layers));
  schema::write_complete(*impl_->root);
  impl_->group.reset();
  impl_->layers.reset();
  impl_->root.reset();
  impl_->file.close();
  impl_->target.commit();
}

struct WeightFisherReader::Impl {
  std::filesystem::path path;
  h5::File file;
  CalibrationHeader header;
  BlockShape shape;
  explicit Impl(const std::filesystem::path& file_path) : path(file_path), file(h5::File::open(file_path)) {}

  h5::Group layer(int layer) const {
    KVQ_ASSERT(layer >= 0 && layer < shape.kv.layers);
    return file.root().open_group("layers").open_group(schema::layer_name(layer));
  }
};

WeightFisherReader::WeightFisherReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {
  const h5::Group root = impl_->file.root();
  impl_->header = schema::read_sample(root, "weight-fisher");
  impl_->shape = schema::read_block_shape(root, impl_->header.shape);
  for (int layer = 0; layer < impl_->shape.kv.layers; ++layer) {
    const h5::Group group = impl_->layer(layer);
    for (const BlockMatrix matrix : kBlockMatrices) {
      const char* name = block_matrix_name(matrix);
      group.require(name, h5::Type::F16, matrix_shape(impl_->shape, matrix));
      schema::read_scale(group, name);
    }
  }
}
WeightFisherReader::~WeightFisherReader() = default;

const CalibrationHeader& WeightFisherReader::header() const { return impl_->header; }
const BlockShape& WeightFisherReader::shape() const { return impl_->shape; }
std::string WeightFisherReader::sha256() const { return sha256_of_file(impl_->path); }

std::vector<float> WeightFisherReader::roots(int layer, BlockMatrix matrix) const {
  const h5::Group group = impl_->layer(layer);
  const char* name = block_matrix_name(matrix);
  const h5::Shape shape = matrix_shape(impl_->shape, matrix);
  const float scale = schema::read_scale(group, name);
  const std::vector<std::uint16_t> halves = group.read_halves(name, shape);
  std::vector<float> roots(halves.size());
  for (std::size_t index = 0; index < halves.size(); ++index) {
    roots[index] = half_to_float(halves[index]) * scale;
    if (!(roots[index] >= 0 && std::isfinite(roots[index])))
      group.damaged(name, fmt::format("holds {} at {}", roots[index], schema::position(shape, index)));
  }
  return roots;
}

}  // namespace kvq
