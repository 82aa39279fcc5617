#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/hash.h>

namespace kvq {

struct CalibrationReader::Impl {
  std::filesystem::path path;
  h5::File file;
  CalibrationHeader header;
  h5::Shape tensor, moment, mass;

  explicit Impl(const std::filesystem::path& file_path) : path(file_path), file(h5::File::open(file_path)) {}

  h5::Group layer(int layer) const {
    KVQ_ASSERT(layer >= 0 && layer < header.shape.layers);
    return file.root().open_group("layers").open_group(schema::layer_name(layer));
  }

  std::vector<float> scaled(int index, const std::string& name) const {
    const h5::Group group = layer(index);
    const float scale = schema::read_scale(group, name);
    const std::vector<std::uint16_t> halves = group.read_halves(name, tensor);
    std::vector<float> values(halves.size());
    // Inf and NaN have all exponent bits set; OR-ing a whole run keeps the common case free of branches.
    bool finite = true;
    for (std::size_t element = 0; element < halves.size(); ++element) {
      finite &= (halves[element] & 0x7c00u) != 0x7c00u;
      values[element] = half_to_float(halves[element]) * scale;
    }
    if (!finite) schema::require_finite(group, name, tensor, values);
    return values;
  }
};

namespace {

/// Softmax weights of a query sum to one, so all that tokens receive sums to the number of queries.
constexpr double kMassTolerance = 0.01;

/// A sum of squares stands on the diagonal of every block. Throws Format.
void require_diagonal(const h5::Group& group, const std::string& name, const h5::Shape& shape,
                      const std::vector<double>& blocks) {
  const auto dim = static_cast<std::size_t>(shape[2]);
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    if (index / dim % dim == index % dim && blocks[index] < 0)
      group.damaged(name, fmt::format("is {} at {}, on its diagonal", blocks[index], schema::position(shape, index)));
  }
}

bool all_zero(const std::vector<double>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](double number) { return number == 0; });
}

/// 0 or 1, or absent.
bool flag(const h5::Group& root, const std::string& name, bool usual) {
  if (!root.has_attribute(name)) return usual;
  const std::int64_t value = root.integer(name);
  if (value != 0 && value != 1) root.damaged(name, fmt::format("attribute is {}, 0 or 1 is possible", value));
  return value == 1;
}

}  // namespace

CalibrationReader::CalibrationReader(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {
  const h5::Group root = impl_->file.root();
  impl_->header = schema::read_sample(root, "calibration");
  impl_->header.gradients = flag(root, "gradients", true);
  impl_->header.metrics = flag(root, "metrics", false);
  const KvShape& shape = impl_->header.shape;
  const auto tokens = static_cast<std::uint64_t>(impl_->header.total_tokens());
  const auto heads = static_cast<std::uint64_t>(shape.kv_heads), dim = static_cast<std::uint64_t>(shape.head_dim);
  impl_->tensor = {tokens, heads, dim};
  impl_->moment = {heads, dim, dim};
  impl_->mass = {tokens};
  const h5::Group layers = root.open_group("layers");
  if (layers.has(schema::layer_name(shape.layers))) {
    layers.damaged(schema::layer_name(shape.layers),
                   fmt::format("is there, but attribute 'layers' is {}", shape.layers));
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    const h5::Group group = layers.open_group(schema::layer_name(layer));
    for (const char* name : {"key", "value", "key_grad", "value_grad"}) {
      if (!impl_->header.gradients && std::string_view(name).ends_with("_grad")) continue;
      group.require(name, h5::Type::F16, impl_->tensor);
      schema::read_scale(group, name);
    }
    group.require("query_moment", h5::Type::F64, impl_->moment);
    group.require("attention_mass", h5::Type::F32, impl_->mass);
    if (!impl_->header.metrics) continue;
    for (const char* name : {"key_metric", "value_metric"}) group.require(name, h5::Type::F64, impl_->moment);
  }
}
CalibrationReader::~CalibrationReader() = default;

const CalibrationHeader& CalibrationReader::header() const { return impl_->header; }
std::string CalibrationReader::sha256() const { return sha256_of_file(impl_->path); }

std::vector<float> CalibrationReader::values(int layer, Side side) const {
  return impl_->scaled(layer, side_name(side));
}
std::vector<float> CalibrationReader::gradients(int layer, Side side) const {
  KVQ_ASSERT(impl_->header.gradients);
  return impl_->scaled(layer, std::string(side_name(side)) + "_grad");
}

std::vector<double> CalibrationReader::query_moment(int layer) const {
  const h5::Group group = impl_->layer(layer);
  std::vector<double> moment = group.read_doubles("query_moment", impl_->moment);
  schema::require_finite(group, "query_moment", impl_->moment, moment);
  require_diagonal(group, "query_moment", impl_->moment, moment);
  return moment;
}

std::vector<float> CalibrationReader::attention_mass(int layer) const {
  const h5::Group group = impl_->layer(layer);
  std::vector<float> mass = group.read_floats("attention_mass", impl_->mass);
  schema::require_finite(group, "attention_mass", impl_->mass, mass);
  double sum = 0;
  for (std::size_t token = 0; token < mass.size(); ++token) {
    if (mass[token] < 0)
      group.damaged("attention_mass", fmt::format("is {} at {}", mass[token], schema::position(impl_->mass, token)));
    sum += mass[token];
  }
  sum /= static_cast<double>(mass.size()) * impl_->header.shape.heads;
  if (!(std::abs(sum - 1) <= kMassTolerance))
    group.damaged("attention_mass", fmt::format("sums to {:.4g} for each query, 1 is right", sum));
  return mass;
}

std::vector<double> CalibrationReader::metric(int layer, Side side) const {
  KVQ_ASSERT(impl_->header.metrics);
  const h5::Group group = impl_->layer(layer);
  const std::string name = std::string(side_name(side)) + "_metric";
  std::vector<double> metric = group.read_doubles(name, impl_->moment);
  schema::require_finite(group, name, impl_->moment, metric);
  require_diagonal(group, name, impl_->moment, metric);
  // Of values it may be zero: where the output projection is.
  if (side == Side::Key && all_zero(metric) && !all_zero(query_moment(layer)))
    group.damaged(name, "is zero everywhere, though 'query_moment' is not");
  const auto dim = static_cast<std::size_t>(impl_->moment[2]);
  for (std::size_t index = 0; index < metric.size(); ++index) {
    const std::size_t head = index / (dim * dim), row = index / dim % dim, column = index % dim;
    if (metric[index] != metric[(head * dim + column) * dim + row])
      group.damaged(name, fmt::format("is not symmetric at {}", schema::position(impl_->moment, index)));
  }
  return metric;
}

}  // namespace kvq
