#include <kvq/artifacts/weights_file.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr double kSameBits = 1e-9;

double bits_of(std::int64_t bytes, std::int64_t weights) {
  return 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
}

}  // namespace

struct WeightsWriter::Impl {
  AtomicFile target;
  h5::File file;
  std::optional<h5::Group> root, layers, group;
  WeightsHeader header;
  std::size_t next = 0;  ///< matrix, all layers
  std::int64_t bytes = 0, weights = 0;

  Impl(const std::filesystem::path& path, bool force)
      : target(path, force), file(h5::File::create(target.temporary(), path.string())) {}
};

WeightsWriter::WeightsWriter(const std::filesystem::path& path, const WeightsHeader& header, bool force)
    : impl_(std::make_unique<Impl>(path, force)) {
  impl_->header = header;
  impl_->root = impl_->file.root();
  const h5::Group& root = *impl_->root;
  schema::write_provenance(root, "weights", header.provenance);
  schema::write_shape(root, header.shape.kv);
  schema::write_block_sizes(root, header.shape);
  root.set("scheme", short_form(header.scheme));
  root.write("fingerprints", {header.fingerprints.size()}, std::span(header.fingerprints));
  impl_->layers = root.create_group("layers");
}
WeightsWriter::~WeightsWriter() = default;

void WeightsWriter::write_matrix(int layer, BlockMatrix matrix, const WeightMatrix& data) {
  const BlockShape& shape = impl_->header.shape;
  KVQ_ASSERT(static_cast<std::size_t>(layer) * kBlockMatrices.size() + static_cast<std::size_t>(matrix) ==
             impl_->next++);
  KVQ_ASSERT(data.rows == shape.rows(matrix) && data.columns == shape.columns(matrix) &&
             data.bits == impl_->header.scheme.bits && problem_of(data).empty());
  if (matrix == kBlockMatrices.front()) impl_->group = impl_->layers->create_group(schema::layer_name(layer));
  const h5::Group group = impl_->group->create_group(block_matrix_name(matrix));
  const auto rows = static_cast<std::uint64_t>(data.rows);
  group.set("exponent", std::int64_t{data.exponent});
  group.write("codebooks", {rows, static_cast<std::uint64_t>(data.levels())}, h5::as_halves(data.codebooks));
  group.write("codes", {rows, static_cast<std::uint64_t>(data.row_bytes())}, std::span(data.codes));
  group.write("row_start", {rows + 1}, std::span(data.row_start));
  group.write("sparse_columns", {data.sparse_columns.size()}, std::span(data.sparse_columns));
  group.write("sparse_values", {data.sparse_values.size()}, h5::as_halves(data.sparse_values));
  impl_->bytes += data.counted_bytes();
  impl_->weights += data.weights();
}

double WeightsWriter::bits_counted() const { return bits_of(impl_->bytes, impl_->weights); }

void WeightsWriter::finish() {
  KVQ_ASSERT(impl_->next == kBlockMatrices.size() * static_cast<std::size_t>(impl_->header.shape.kv.layers));
  impl_->root->set("bits_counted", bits_counted());
  schema::write_complete(*impl_->root);
  impl_->group.reset();
  impl_->layers.reset();
  impl_->root.reset();
  impl_->file.close();
  impl_->target.commit();
}

struct WeightsReader::Impl {
  h5::File file;
  WeightsHeader header;
  explicit Impl(const std::filesystem::path& path) : file(h5::File::open(path)) {}
};

WeightsReader::WeightsReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {
  const h5::Group root = impl_->file.root();
  WeightsHeader& header = impl_->header;
  header.provenance = schema::read_provenance(root, "weights");
  header.shape = schema::read_block_shape(root, schema::read_shape(root));
  try {
    header.scheme = parse_weight_scheme(root.text("scheme"));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Usage) throw;
    root.damaged("scheme", fmt::format("attribute: {}", error.what()));
  }
  header.bits_counted = root.number("bits_counted");
  header.fingerprints = root.read_words("fingerprints", {h5::kAnyOrNone});
  if (!std::is_sorted(header.fingerprints.begin(), header.fingerprints.end()))
    root.damaged("fingerprints", "is not sorted");
  const h5::Group layers = root.open_group("layers");
  if (layers.has(schema::layer_name(header.shape.kv.layers))) {
    layers.damaged(schema::layer_name(header.shape.kv.layers),
                   fmt::format("is there, but attribute 'layers' is {}", header.shape.kv.layers));
  }
}
WeightsReader::~WeightsReader() = default;

const WeightsHeader& WeightsReader::header() const { return impl_->header; }

WeightMatrix WeightsReader::matrix(int layer, BlockMatrix matrix) const {
  const BlockShape& shape = impl_->header.shape;
  const h5::Group parent = impl_->file.root().open_group("layers").open_group(schema::layer_name(layer));
  const h5::Group group = parent.open_group(block_matrix_name(matrix));
  WeightMatrix data;
  data.rows = shape.rows(matrix);
  data.columns = shape.columns(matrix);
  data.bits = impl_->header.scheme.bits;
  const std::int64_t exponent = group.integer("exponent");
  if (exponent < -126 || exponent > 126)
    group.damaged("exponent", fmt::format("attribute is {}, -126 to 126 are possible", exponent));
  data.exponent = static_cast<int>(exponent);
  const auto rows = static_cast<std::uint64_t>(data.rows);
  data.codebooks = group.read_halves("codebooks", {rows, static_cast<std::uint64_t>(data.levels())});
  data.codes = group.read_bytes("codes", {rows, static_cast<std::uint64_t>(data.row_bytes())});
  data.row_start = group.read_ints("row_start", {rows + 1});
  data.sparse_columns = group.read_shorts("sparse_columns", {h5::kAnyOrNone});
  data.sparse_values = group.read_halves("sparse_values", {data.sparse_columns.size()});
  if (const std::string problem = problem_of(data); !problem.empty())
    parent.damaged(block_matrix_name(matrix), fmt::format("is damaged: {}", problem));
  return data;
}

void WeightsReader::check() const {
  std::int64_t bytes = 0, weights = 0;
  for (int layer = 0; layer < impl_->header.shape.kv.layers; ++layer) {
    for (const BlockMatrix which : kBlockMatrices) {
      const WeightMatrix data = matrix(layer, which);
      bytes += data.counted_bytes();
      weights += data.weights();
    }
  }
  if (std::abs(bits_of(bytes, weights) - impl_->header.bits_counted) > kSameBits * impl_->header.bits_counted) {
    impl_->file.root().damaged("bits_counted", fmt::format("attribute is {}, the matrices take {}",
                                                           impl_->header.bits_counted, bits_of(bytes, weights)));
  }
}

}  // namespace kvq
