#include <kvq/artifacts/thresholds_file.h>

#include <cmath>

#include <fmt/format.h>

#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr ThresholdTensor kTensors[] = {ThresholdTensor::Key, ThresholdTensor::KeyPostRope, ThresholdTensor::Value};
constexpr std::int64_t kMostSets = 10000;

using FloatField = std::vector<float> ChannelThresholds::*;
using RateField = double ChannelThresholds::*;
const std::pair<const char*, FloatField> kArrays[] = {{"lower", &ChannelThresholds::lower},
                                                      {"upper", &ChannelThresholds::upper},
                                                      {"minimum", &ChannelThresholds::minimum},
                                                      {"maximum", &ChannelThresholds::maximum}};
const std::pair<const char*, RateField> kRates[] = {{"outlier_rate", &ChannelThresholds::outlier_rate},
                                                    {"capped_outlier_rate", &ChannelThresholds::capped_outlier_rate},
                                                    {"online_outlier_rate", &ChannelThresholds::online_outlier_rate}};

h5::Shape stacked(const KvShape& shape) {
  return {static_cast<std::uint64_t>(shape.layers), static_cast<std::uint64_t>(shape.kv_heads),
          static_cast<std::uint64_t>(shape.head_dim)};
}

void write_set(const h5::Group& group, const KvShape& shape, const ThresholdSet& set) {
  group.set("fraction", set.fraction);
  group.set("sinks", std::int64_t{set.sinks});
  KVQ_ASSERT(set.layers.size() == static_cast<std::size_t>(shape.layers));
  for (ThresholdTensor tensor : kTensors) {
    const h5::Group target = group.create_group(threshold_tensor_name(tensor));
    for (const auto& [name, field] : kArrays) {
      std::vector<float> all;
      for (const auto& layer : set.layers) {
        const std::vector<float>& part = layer[static_cast<int>(tensor)].*field;
        KVQ_ASSERT(part.size() == static_cast<std::size_t>(shape.width()));
        all.insert(all.end(), part.begin(), part.end());
      }
      target.write(name, stacked(shape), std::span<const float>(all));
    }
    for (const auto& [name, field] : kRates) {
      std::vector<double> all;
      for (const auto& layer : set.layers) all.push_back(layer[static_cast<int>(tensor)].*field);
      target.write(name, {all.size()}, std::span<const double>(all));
    }
  }
}

void read_tensor(const h5::Group& group, const KvShape& shape, int tensor, ThresholdSet& set) {
  const auto width = static_cast<std::size_t>(shape.width());
  std::vector<float> arrays[4];
  for (std::size_t index = 0; index < 4; ++index) {
    const auto& [name, field] = kArrays[index];
    arrays[index] = group.read_floats(name, stacked(shape));
    schema::require_finite(group, name, stacked(shape), arrays[index]);
    for (int layer = 0; layer < shape.layers; ++layer) {
      const auto begin = arrays[index].begin() + static_cast<std::ptrdiff_t>(layer * width);
      (set.layers[layer][tensor].*field).assign(begin, begin + static_cast<std::ptrdiff_t>(width));
    }
  }
  schema::require_ordered(group, "lower", "upper", stacked(shape), arrays[0], arrays[1]);
  schema::require_ordered(group, "minimum", "maximum", stacked(shape), arrays[2], arrays[3]);
  schema::require_ordered(group, "minimum", "lower", stacked(shape), arrays[2], arrays[0]);
  schema::require_ordered(group, "upper", "maximum", stacked(shape), arrays[1], arrays[3]);
  for (const auto& [name, field] : kRates) {
    const std::vector<double> rates = group.read_doubles(name, {static_cast<std::uint64_t>(shape.layers)});
    for (int layer = 0; layer < shape.layers; ++layer) {
      if (!(rates[layer] >= 0 && rates[layer] <= 1)) {
        group.damaged(name, fmt::format("is {} for layer {}, 0 to 1 are possible", rates[layer], layer));
      }
      set.layers[layer][tensor].*field = rates[layer];
    }
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    const ChannelThresholds& read = set.layers[layer][tensor];
    if (read.capped_outlier_rate > read.outlier_rate)
      group.damaged("capped_outlier_rate", fmt::format("is {} for layer {}, above 'outlier_rate' = {}",
                                                       read.capped_outlier_rate, layer, read.outlier_rate));
  }
}

ThresholdSet read_set(const h5::Group& group, const KvShape& shape) {
  ThresholdSet set;
  set.fraction = group.number("fraction");
  if (set.fraction < 0 || set.fraction >= 0.5)
    group.damaged("fraction", fmt::format("attribute is {}, 0 to 0.5 are possible", set.fraction));
  const std::int64_t sinks = group.integer("sinks");
  if (sinks < 0 || sinks > (1 << 30))
    group.damaged("sinks", fmt::format("attribute is {}, no possible number of tokens", sinks));
  set.sinks = static_cast<int>(sinks);
  set.layers.resize(static_cast<std::size_t>(shape.layers));
  for (ThresholdTensor tensor : kTensors) {
    read_tensor(group.open_group(threshold_tensor_name(tensor)), shape, static_cast<int>(tensor), set);
  }
  return set;
}

}  // namespace

const char* threshold_tensor_name(ThresholdTensor tensor) {
  switch (tensor) {
    case ThresholdTensor::Key:
      return "key";
    case ThresholdTensor::KeyPostRope:
      return "key_post";
    case ThresholdTensor::Value:
      return "value";
  }
  return "?";
}

const ThresholdSet* ThresholdsFile::find(double fraction, int sinks) const {
  for (const ThresholdSet& set : sets) {
    if (std::abs(set.fraction - fraction) < 1e-12 && set.sinks == sinks) return &set;
  }
  return nullptr;
}

void write_thresholds(const std::filesystem::path& path, const ThresholdsFile& file, bool force) {
  AtomicFile target(path, force);
  h5::File output = h5::File::create(target.temporary(), path.string());
  {
    const h5::Group root = output.root();
    schema::write_provenance(root, "thresholds", file.provenance);
    schema::write_shape(root, file.shape);
    root.set("cap", file.cap);
    root.set("set_count", static_cast<std::int64_t>(file.sets.size()));
    const h5::Group sets = root.create_group("sets");
    for (std::size_t index = 0; index < file.sets.size(); ++index) {
      write_set(sets.create_group(fmt::format("{:02}", index)), file.shape, file.sets[index]);
    }
    schema::write_complete(root);
  }
  output.close();
  target.commit();
}

ThresholdsFile read_thresholds(const std::filesystem::path& path) {
  const h5::File input = h5::File::open(path);
  const h5::Group root = input.root();
  ThresholdsFile file;
  file.provenance = schema::read_provenance(root, "thresholds");
  file.shape = schema::read_shape(root);
  file.cap = root.number("cap");
  if (file.cap < 0 || file.cap > 1) root.damaged("cap", fmt::format("attribute is {}, 0 to 1 are possible", file.cap));
  const std::int64_t count = root.integer("set_count");
  if (count < 1 || count > kMostSets)
    root.damaged("set_count", fmt::format("attribute is {}, 1 to {} are possible", count, kMostSets));
  const h5::Group sets = root.open_group("sets");
  for (std::int64_t index = 0; index < count; ++index) {
    file.sets.push_back(read_set(sets.open_group(fmt::format("{:02}", index)), file.shape));
  }
  return file;
}

}  // namespace kvq
