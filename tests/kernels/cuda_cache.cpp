#include "cuda_cache.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <tuple>

#include <kvq/core/half.h>
#include <kvq/kernels/reference/attention_reference.h>

#include "support/catch.h"

namespace kvq::test {

std::string no_gpu_reason() {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(error);
  return devices == 0 ? "no GPU" : "";
}

DeviceBytes::DeviceBytes(std::size_t bytes) {
  REQUIRE(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)) == cudaSuccess);
  REQUIRE(cudaMemset(data_, 0xff, std::max<std::size_t>(bytes, 16)) == cudaSuccess);
}

DeviceBytes::DeviceBytes(const void* from, std::size_t bytes) : DeviceBytes(bytes) {
  if (bytes) REQUIRE(cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice) == cudaSuccess);
}

DeviceBytes::~DeviceBytes() { cudaFree(data_); }

void DeviceBytes::download(void* to, std::size_t bytes) const {
  REQUIRE(cudaMemcpy(to, data_, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
}

RandomCache::RandomCache(const CacheRecipe& recipe) : recipe_(recipe) {
  std::mt19937 random(recipe.seed);
  const auto uniform = [&random](double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random);
  };
  const auto normal = [&random] { return std::normal_distribution<double>()(random); };
  const int width = recipe.kv_heads * recipe.head_dim;
  const double rate = recipe.outliers + recipe.full_token_rate;
  layout::SideShape key, value;
  key.kv_heads = value.kv_heads = recipe.kv_heads;
  key.head_dim = value.head_dim = recipe.head_dim;
  key.bits = recipe.key_bits, value.bits = recipe.value_bits;
  key.varying_outliers = rate > 0;
  if (rate > 0) {
    key.outlier_capacity =
        recipe.capacity >= 0 ? recipe.capacity : layout::outlier_page_capacity(recipe.outliers, width);
    value.outliers_per_end = std::max(1, static_cast<int>(std::lround(recipe.outliers * width / 2)));
  }
  value.token_ranges = true;
  page_ = layout::page_layout(key, value);
  const layout::OverflowBlock block = layout::overflow_block(page_.key);
  block_bytes_ = block.bytes;

  const auto books = static_cast<std::size_t>(recipe.own_books ? recipe.kv_heads : 1);
  const auto book = [&](int bits, std::vector<float>& decoded) {
    for (std::size_t i = 0; i < books; ++i) {
      std::vector<float> levels(std::size_t{1} << bits);
      for (float& level : levels) level = static_cast<float>(uniform(-1, 1));
      std::sort(levels.begin(), levels.end());
      decoded.insert(decoded.end(), levels.begin(), levels.end());
    }
  };
  book(recipe.key_bits, key_decoded_);
  book(recipe.value_bits, value_decoded_);
  const double key_unit = std::ldexp(recipe.key_size, recipe.key_exponent);
  for (int channel = 0; channel < width; ++channel) {
    // Channels differ in size, as those of real keys do.
    const double size = key_unit * std::exp2(uniform(-4, 0));
    const bool constant = uniform(0, 1) < recipe.constant_channels;
    scale_.push_back(constant ? 0.0f : static_cast<float>(size));
    zero_.push_back(static_cast<float>(size * normal()));
  }

  // Pages of the sequences lie in random order in one pool.
  std::int64_t pages = 0;
  for (const int length : recipe.lengths) {
    pages += layout::pages(length);
    most_pages_ = std::max(most_pages_, layout::pages(length));
  }
  std::vector<std::uint32_t> order(static_cast<std::size_t>(pages) + 3);
  std::iota(order.begin(), order.end(), 0u);
  std::shuffle(order.begin(), order.end(), random);
  pages_.resize(order.size() * static_cast<std::size_t>(page_.bytes));
  const auto put = [](std::uint8_t* at, auto number) { std::memcpy(at, &number, sizeof number); };
  /// An exact value, in the order of the lists.
  struct Entry {
    int head, token, channel;
    std::uint16_t value;
    bool operator<(const Entry& other) const {
      return std::tie(head, token, channel) < std::tie(other.head, other.token, other.channel);
    }
  };
  const auto put_list = [&](std::uint8_t* page, const layout::SideShape& side, const layout::SideParts& parts,
                            std::vector<Entry> entries) {
    std::sort(entries.begin(), entries.end());
    std::vector<std::uint16_t> counts(static_cast<std::size_t>(recipe.kv_heads));
    if (side.varying_outliers) put(page + parts.overflow_link, layout::kNoBlock);
    std::int64_t place = 0, room = side.page_entries();
    std::size_t data = 0, link = 0;  // in the overflow blocks
    bool in_page = true;
    for (const Entry& entry : entries) {
      ++counts[static_cast<std::size_t>(entry.head)];
      if (place == room) {
        const auto number = static_cast<std::uint32_t>(overflow_blocks());
        put(in_page ? page + parts.overflow_link : overflow_.data() + link, number);
        in_page = false;
        data = overflow_.size();
        overflow_.resize(data + static_cast<std::size_t>(block.bytes));
        link = data + static_cast<std::size_t>(block.link);
        put(overflow_.data() + link, layout::kNoBlock);
        place = 0, room = layout::kOutlierBlockEntries;
      }
      std::uint8_t* base = in_page ? page : overflow_.data() + data;
      put(base + (in_page ? parts.outlier_values : 0) + 2 * place, entry.value);
      base[(in_page ? parts.outlier_channels : block.channels) + place] = static_cast<std::uint8_t>(entry.channel);
      for (int bit = 0; bit < 6; ++bit) {
        const std::int64_t at = 6 * place + bit;
        base[(in_page ? parts.outlier_tokens : block.tokens) + at / 8] |=
            static_cast<std::uint8_t>((entry.token >> bit & 1) << (at % 8));
      }
      ++place;
    }
    std::memcpy(page + parts.outlier_counts, counts.data(), 2 * counts.size());
  };

  std::size_t used = 0;
  for (const int length : recipe.lengths) {
    block_table_.resize(block_table_.size() + static_cast<std::size_t>(most_pages_), 0xffffffffu);
    std::uint32_t* table = block_table_.data() + block_table_.size() - most_pages_;
    for (int first = 0; first < length; first += layout::kPageTokens) {
      *table = order[used++];
      std::uint8_t* page = pages_.data() + *table++ * page_.bytes;
      std::vector<Entry> key_entries, value_entries;
      for (int token = 0; token < std::min(layout::kPageTokens, length - first); ++token) {
        if (first + token < recipe.sinks) continue;
        const bool full = uniform(0, 1) < recipe.full_token_rate;
        std::vector<bool> key_exact(static_cast<std::size_t>(width)), value_exact(static_cast<std::size_t>(width));
        for (int channel = 0; channel < width && rate > 0; ++channel) {
          if (!full && uniform(0, 1) >= recipe.outliers) continue;
          key_exact[static_cast<std::size_t>(channel)] = true;
          const double x = zero_[static_cast<std::size_t>(channel)] + key_unit * uniform(-3, 3);
          key_entries.push_back({channel / recipe.head_dim, token, channel % recipe.head_dim,
                                 float_to_half(static_cast<float>(std::ldexp(x, -recipe.key_exponent)))});
        }
        const bool any_range = value.entries_per_token() < width;  // where all are outliers there is none
        const double zero = any_range ? normal() : 0.0, scale = any_range ? uniform(0.01, 2) : 0.0;
        put(page + page_.value_parts.ranges + 4 * token, float_to_half(static_cast<float>(zero)));
        put(page + page_.value_parts.ranges + 4 * token + 2, float_to_half(static_cast<float>(scale)));
        if (value.entries_per_token() > 0) {
          std::vector<int> channels(static_cast<std::size_t>(width));
          std::iota(channels.begin(), channels.end(), 0);
          std::shuffle(channels.begin(), channels.end(), random);
          channels.resize(static_cast<std::size_t>(value.entries_per_token()));
          std::sort(channels.begin(), channels.end());
          for (const int channel : channels) {
            value_exact[static_cast<std::size_t>(channel)] = true;
            value_entries.push_back({channel / recipe.head_dim, token, channel % recipe.head_dim,
                                     float_to_half(static_cast<float>(recipe.value_outliers * normal()))});
          }
        }
        const auto put_codes = [&](const layout::SideShape& side, std::int64_t codes, const std::vector<bool>& exact) {
          for (int channel = 0; channel < width; ++channel) {
            if (exact[static_cast<std::size_t>(channel)]) continue;
            const unsigned code = random() & ((1u << side.bits) - 1u);
            for (int place = 0; place < side.bits; ++place) {
              const int bit = token * side.bits + place;
              page[codes + channel * side.row_bytes() + bit / 8] |=
                  static_cast<std::uint8_t>((code >> place & 1u) << (bit % 8));
            }
          }
        };
        put_codes(page_.key, page_.key_parts.codes, key_exact);
        put_codes(page_.value, page_.value_parts.codes, value_exact);
      }
      if (key.has_outliers()) put_list(page, page_.key, page_.key_parts, std::move(key_entries));
      if (value.has_outliers()) put_list(page, page_.value, page_.value_parts, std::move(value_entries));
    }
  }

  const std::size_t exact = recipe.lengths.size() * static_cast<std::size_t>(recipe.sinks * width);
  for (std::size_t i = 0; i < exact; ++i) {
    sink_keys_.push_back(float_to_half(static_cast<float>(recipe.key_size * normal())));
    sink_values_.push_back(float_to_half(static_cast<float>(normal())));
  }
  for (std::size_t i = 0; i < recipe.lengths.size() * static_cast<std::size_t>(recipe.heads * recipe.head_dim); ++i) {
    query_.push_back(recipe.query_size / key_unit * normal());
  }
}

std::vector<double> RandomCache::inverse_frequencies() const {
  std::vector<double> result;
  for (int pair = 0; pair < recipe_.head_dim / 2; ++pair) {
    result.push_back(std::pow(recipe_.theta, -2.0 * pair / recipe_.head_dim));
  }
  return result;
}

reference::Side RandomCache::side(bool key) const {
  reference::Side side;
  side.shape = key ? page_.key : page_.value;
  side.parts = key ? page_.key_parts : page_.value_parts;
  side.exponent = key ? recipe_.key_exponent : recipe_.value_exponent;
  if (key) side.zero.assign(zero_.begin(), zero_.end()), side.scale.assign(scale_.begin(), scale_.end());
  const std::vector<float>& decoded = key ? key_decoded_ : value_decoded_;
  side.decoded.assign(decoded.begin(), decoded.end());
  return side;
}

std::vector<double> RandomCache::expected() const {
  const reference::Heads shape{recipe_.heads, recipe_.kv_heads, recipe_.head_dim};
  reference::Rope rope;
  rope.inverse_frequencies = inverse_frequencies();
  const auto row = static_cast<std::size_t>(recipe_.heads * recipe_.head_dim);
  const auto exact = static_cast<std::size_t>(recipe_.sinks * page_.key.width());
  const reference::OverflowBlocks blocks = [this](std::uint32_t number) {
    return overflow_.data() + number * static_cast<std::size_t>(block_bytes_);
  };
  std::vector<double> result;
  for (std::size_t sequence = 0; sequence < recipe_.lengths.size(); ++sequence) {
    const int length = recipe_.lengths[sequence];
    if (length == 0) {
      result.resize(result.size() + row, 0.0);
      continue;
    }
    std::vector<const std::uint8_t*> pages;
    for (std::int64_t page = 0; page < layout::pages(length); ++page) {
      pages.push_back(pages_.data() +
                      block_table_[sequence * static_cast<std::size_t>(most_pages_) + static_cast<std::size_t>(page)] *
                          page_.bytes);
    }
    const auto decode = [&](bool key, const std::vector<std::uint16_t>& sinks) {
      return reference::decode_pages(pages, side(key), length, std::span(sinks).subspan(sequence * exact, exact),
                                     blocks);
    };
    const std::vector<double> output =
        reference::decode_attention(shape, std::span(query_).subspan(sequence * row, row), decode(true, sink_keys_),
                                    decode(false, sink_values_), rope);
    result.insert(result.end(), output.begin(), output.end());
  }
  return result;
}

std::vector<float> RandomCache::attend() const {
  std::vector<float> query;
  const auto head_dim = static_cast<std::size_t>(recipe_.head_dim);
  reference::Rope rope;
  rope.inverse_frequencies = inverse_frequencies();
  for (std::size_t row = 0; row * head_dim < query_.size(); ++row) {
    std::vector<double> x(query_.begin() + static_cast<std::ptrdiff_t>(row * head_dim),
                          query_.begin() + static_cast<std::ptrdiff_t>((row + 1) * head_dim));
    const int length = recipe_.lengths[row / static_cast<std::size_t>(recipe_.heads)];
    reference::rotate(x, rope, length - 1);
    for (const double number : x) query.push_back(static_cast<float>(number));
  }
  const std::vector<std::int32_t> host_lengths(recipe_.lengths.begin(), recipe_.lengths.end());
  const DeviceBytes pages = upload(pages_), overflow = upload(overflow_), table = upload(block_table_),
                    lengths = upload(host_lengths), sink_keys = upload(sink_keys_), sink_values = upload(sink_values_),
                    zero = upload(zero_), scale = upload(scale_), key_decoded = upload(key_decoded_),
                    value_decoded = upload(value_decoded_), queries = upload(query), output(query.size() * 4);
  cuda::DecodeAttention arguments;
  cuda::PackedLayer& layer = arguments.cache;
  layer.page = page_;
  layer.pages = pages.as<std::uint8_t>();
  layer.block_table = table.as<std::uint32_t>();
  layer.block_table_stride = most_pages_;
  layer.lengths = lengths.as<std::int32_t>();
  layer.key_overflow = overflow.as<std::uint8_t>();
  layer.sinks = recipe_.sinks;
  layer.sink_keys = sink_keys.as<std::uint16_t>();
  layer.sink_values = sink_values.as<std::uint16_t>();
  const int books = recipe_.own_books ? recipe_.kv_heads : 1;
  layer.key = {zero.as<float>(), scale.as<float>(), key_decoded.as<float>(), books, recipe_.key_exponent};
  layer.value = {nullptr, nullptr, value_decoded.as<float>(), books, recipe_.value_exponent};
  arguments.batch = static_cast<int>(recipe_.lengths.size());
  arguments.heads = recipe_.heads;
  arguments.max_length = *std::max_element(recipe_.lengths.begin(), recipe_.lengths.end());
  arguments.query = queries.data(), arguments.output = output.data();
  arguments.query_type = arguments.output_type = cuda::Number::Float;
  arguments.softmax_scale = static_cast<float>(1.0 / std::sqrt(recipe_.head_dim));
  arguments.splits = recipe_.splits;
  const std::vector<double> frequencies = rope.inverse_frequencies;
  const DeviceBytes rope_memory(cuda::rope_table_bytes(recipe_.head_dim, arguments.max_length));
  REQUIRE(cuda::build_rope_tables(frequencies.data(), recipe_.head_dim, arguments.max_length, rope_memory.data(),
                                  arguments.rope, nullptr) == cuda::Status::Ok);
  const DeviceBytes workspace(cuda::decode_workspace_bytes(arguments));
  const std::vector<std::uint32_t> zeros(recipe_.lengths.size() * static_cast<std::size_t>(recipe_.heads));
  const DeviceBytes arrivals = upload(zeros);
  arguments.arrivals = arrivals.as<std::uint32_t>();
  arguments.workspace = workspace.data();
  arguments.workspace_bytes = cuda::decode_workspace_bytes(arguments);
  REQUIRE(cuda::decode_attention(arguments, nullptr) == cuda::Status::Ok);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<float> result(query.size());
  output.download(result.data(), result.size() * 4);
  // A second launch finds everything as the first one did.
  REQUIRE(cuda::decode_attention(arguments, nullptr) == cuda::Status::Ok);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  std::vector<float> again(query.size());
  output.download(again.data(), again.size() * 4);
  CHECK(again == result);
  return result;
}

double relative_error(std::span<const float> x, std::span<const double> y) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    size += y[i] * y[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

}  // namespace kvq::test
