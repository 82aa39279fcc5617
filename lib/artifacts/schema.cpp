#include <kvq/artifacts/internal/schema.h>

#include <cmath>
#include <sstream>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq::schema {

namespace {

constexpr int kMostLayers = 4096, kMostHeads = 65536,
              kMostHeadDim = 65536;  // far beyond any model; keeps products in range

int bounded(const h5::Group& root, const std::string& name, int most) {
  const std::int64_t value = root.integer(name);
  if (value < 1 || value > most) root.damaged(name, fmt::format("attribute is {}, 1 to {} are possible", value, most));
  return static_cast<int>(value);
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string read_sha256(const h5::Group& root, const std::string& name) {
  const std::string text = root.text(name);
  if (!is_sha256(text))
    root.damaged(name, fmt::format("attribute holds '{}', 64 hexadecimal digits are needed", shortened(text)));
  return text;
}

void check_version(const h5::Group& root) {
  const std::string version = root.text("schema_version");
  int major = 0, minor = 0;
  char dot = 0, rest = 0;
  std::istringstream stream(version);
  if (!(stream >> major >> dot >> minor) || dot != '.' || stream >> rest || major < 0 || minor < 0) {
    root.damaged("schema_version", fmt::format("attribute is '{}', 'major.minor' is needed", shortened(version)));
  }
  if (major != kMajor) {
    fail(ErrorKind::Format, fmt::format("{}: schema version {} is {} than this program reads ({}.x); {}", root.file(),
                                        version, major > kMajor ? "newer" : "older", kMajor,
                                        major > kMajor ? "use a newer kvq" : "make the file again"));
  }
}

}  // namespace

void write_provenance(const h5::Group& root, const std::string& schema, const Provenance& provenance) {
  root.set("kvq_schema", schema);
  root.set("schema_version", fmt::format("{}.{}", kMajor, kMinor));
  root.set("producer", std::string("kvq " KVQ_VERSION));
  root.set("model_sha256", provenance.model_sha256);
  root.set("tokenizer_sha256", provenance.tokenizer_sha256);
  root.set("text_sha256", provenance.text_sha256);
  root.set("config", provenance.config);
  std::string parents;
  for (const auto& [name, sha256] : provenance.parents) parents += fmt::format("{} {}\n", name, sha256);
  root.set("parents", parents);
}

void write_complete(const h5::Group& root) { root.set("complete", std::int64_t{1}); }

void write_shape(const h5::Group& root, const KvShape& shape) {
  root.set("layers", std::int64_t{shape.layers});
  root.set("heads", std::int64_t{shape.heads});
  root.set("kv_heads", std::int64_t{shape.kv_heads});
  root.set("head_dim", std::int64_t{shape.head_dim});
}

void write_rope(const h5::Group& root, const ModelRope& rope) {
  root.set("rope_kind", rope.kind);
  root.set("rope_theta", rope.theta);
  root.set("rope_rotary_dim", std::int64_t{rope.rotary_dim});
  root.set("rope_factor", rope.factor);
  root.set("rope_low_freq_factor", rope.low_freq_factor);
  root.set("rope_high_freq_factor", rope.high_freq_factor);
  root.set("rope_original_context", rope.original_context);
  if (!rope.has_local_layers()) return;
  root.set("local_window", rope.window);
  root.set("local_rope_theta", rope.local.theta);
  root.write("local_layers", {rope.is_local.size()}, std::span<const std::uint8_t>(rope.is_local));
}

Provenance read_provenance(const h5::Group& root, const std::string& schema) {
  if (!root.has_attribute("kvq_schema")) {
    fail(ErrorKind::Format,
         fmt::format("{}: is an HDF5 file, but not one of kvq's (no attribute 'kvq_schema')", root.file()));
  }
  const std::string found = root.text("kvq_schema");
  if (found != schema)
    fail(ErrorKind::Mismatch,
         fmt::format("{}: is a {} file, a {} file is needed", root.file(), shortened(found), schema));
  check_version(root);
  if (!root.has_attribute("complete") || root.integer("complete") != 1) {
    fail(ErrorKind::Format,
         fmt::format("{}: is incomplete (no attribute 'complete' = 1): its writing was cut short", root.file()));
  }
  root.text("producer");  // for people; a file without it is not whole
  Provenance provenance;
  provenance.model_sha256 = read_sha256(root, "model_sha256");
  provenance.tokenizer_sha256 = read_sha256(root, "tokenizer_sha256");
  provenance.text_sha256 = read_sha256(root, "text_sha256");
  provenance.config = root.text("config");
  std::istringstream parents(root.text("parents"));
  for (std::string line; std::getline(parents, line);) {
    const auto space = line.find(' ');
    if (space == std::string::npos || !is_sha256(line.substr(space + 1)))
      root.damaged("parents", fmt::format("attribute holds '{}', 'name sha256' is needed", shortened(line)));
    provenance.parents.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return provenance;
}

KvShape read_shape(const h5::Group& root) {
  KvShape shape;
  shape.layers = bounded(root, "layers", kMostLayers);
  shape.heads = bounded(root, "heads", kMostHeads);
  shape.kv_heads = bounded(root, "kv_heads", kMostHeads);
  shape.head_dim = bounded(root, "head_dim", kMostHeadDim);
  if (shape.heads % shape.kv_heads != 0) {
    root.damaged("heads",
                 fmt::format("attribute is {}, a multiple of kv_heads = {} is needed", shape.heads, shape.kv_heads));
  }
  return shape;
}

namespace {

void read_local_layers(const h5::Group& root, const KvShape& shape, ModelRope& rope) {
  rope.window = root.integer("local_window");
  if (rope.window < 1)
    root.damaged("local_window", fmt::format("attribute is {}, a positive number is needed", rope.window));
  rope.local.rotary_dim = rope.rotary_dim;
  rope.local.theta = root.number("local_rope_theta");
  if (rope.local.theta <= 0)
    root.damaged("local_rope_theta", fmt::format("attribute is {}, a positive number is needed", rope.local.theta));
  rope.is_local = root.read_bytes("local_layers", {static_cast<std::uint64_t>(shape.layers)});
  for (std::size_t layer = 0; layer < rope.is_local.size(); ++layer) {
    if (rope.is_local[layer] > 1)
      root.damaged("local_layers", fmt::format("layer {} is {}, 0 or 1 is needed", layer, rope.is_local[layer]));
  }
}

}  // namespace

ModelRope read_rope(const h5::Group& root, const KvShape& shape) {
  ModelRope rope;
  rope.kind = root.text("rope_kind");
  rope.theta = root.number("rope_theta");
  const std::int64_t rotary = root.integer("rope_rotary_dim");
  if (rotary < 0 || rotary > shape.head_dim || rotary % 2 != 0) {
    root.damaged("rope_rotary_dim",
                 fmt::format("attribute is {}, an even number up to head_dim = {} is needed", rotary, shape.head_dim));
  }
  rope.rotary_dim = static_cast<int>(rotary);
  rope.factor = root.number("rope_factor");
  rope.low_freq_factor = root.number("rope_low_freq_factor");
  rope.high_freq_factor = root.number("rope_high_freq_factor");
  rope.original_context = root.number("rope_original_context");
  if (rope.theta <= 0)
    root.damaged("rope_theta", fmt::format("attribute is {}, a positive number is needed", rope.theta));
  if (rope.factor <= 0)
    root.damaged("rope_factor", fmt::format("attribute is {}, a positive number is needed", rope.factor));
  try {
    rope.inverse_frequencies();
  } catch (const Error& error) {
    root.damaged("rope_kind", fmt::format("attribute: {}", error.what()));
  }
  if (root.has("local_layers")) read_local_layers(root, shape, rope);
  return rope;
}

std::string layer_name(int layer) { return fmt::format("{:02}", layer); }

std::string position(const h5::Shape& shape, std::uint64_t flat) {
  h5::Shape index(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0; flat /= shape[axis]) index[axis] = flat % shape[axis];
  return h5::to_string(index);
}

namespace {
template <class T>
void check_finite(const h5::Group& group, const std::string& name, const h5::Shape& shape, std::span<const T> data) {
  for (std::size_t index = 0; index < data.size(); ++index) {
    if (!std::isfinite(data[index]))
      group.damaged(name, fmt::format("holds {} at {}", data[index], position(shape, index)));
  }
}
}  // namespace

void require_finite(const h5::Group& group, const std::string& name, const h5::Shape& shape,
                    std::span<const float> data) {
  check_finite(group, name, shape, data);
}
void require_finite(const h5::Group& group, const std::string& name, const h5::Shape& shape,
                    std::span<const double> data) {
  check_finite(group, name, shape, data);
}

void require_ordered(const h5::Group& group, const std::string& lower, const std::string& upper, const h5::Shape& shape,
                     std::span<const float> low, std::span<const float> high) {
  for (std::size_t index = 0; index < low.size(); ++index) {
    if (low[index] > high[index]) {
      group.damaged(
          lower, fmt::format("is {} at {}, above '{}' = {}", low[index], position(shape, index), upper, high[index]));
    }
  }
}

}  // namespace kvq::schema
