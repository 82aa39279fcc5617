#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include <kvq/core/half.h>
#include <kvq/kernels/cuda/quantize_append.h>
#include <kvq/quant/encoder.h>

#include "cuda_cache.h"
#include "support/catch.h"

using namespace kvq;
using namespace kvq::test;

namespace {

struct Problem {
  int kv_heads = 2, head_dim = 128, key_bits = 4, value_bits = 4;
  double outliers = 0.01, cap = 0.0;
  int sinks = 1;
  bool own_books = false, ties = false;
  int exponent = 0;
  std::vector<int> chunks = {70, 1, 1, 56, 3, 200};  ///< tokens of each call
  unsigned seed = 1;

  int width() const { return kv_heads * head_dim; }
};

class Setup {
 public:
  explicit Setup(const Problem& p) : problem(p), random(p.seed) {
    const auto side = [&](bool is_key) {
      SideQuantizer quantizer;
      SideRecipe& recipe = quantizer.recipe;
      recipe.bits = is_key ? p.key_bits : p.value_bits;
      recipe.axis = is_key ? Axis::Channel : Axis::Token;
      recipe.range = is_key ? RangeKind::Static : RangeKind::Online;
      recipe.outliers = p.outliers;
      recipe.cap = is_key ? p.cap : 0.0;
      recipe.share = p.own_books ? Share::Head : Share::Layer;
      quantizer.kv_heads = p.kv_heads, quantizer.head_dim = p.head_dim;
      quantizer.exponent = p.exponent;
      for (int book = 0; book < (p.own_books ? p.kv_heads : 1); ++book) {
        Codebook codebook;
        for (int level = 0; level < 1 << recipe.bits; ++level) codebook.centroids.push_back(uniform(-1, 1));
        std::sort(codebook.centroids.begin(), codebook.centroids.end());
        codebook.decoded = codebook.centroids;
        quantizer.codebooks.push_back(codebook);
      }
      for (int channel = 0; channel < p.width() && is_key; ++channel) {
        const float middle = unit() * uniform(-1, 1), half = channel % 17 == 3 ? 0.0f : unit() * uniform(0.1f, 3);
        quantizer.lower.push_back(middle - half);
        quantizer.upper.push_back(middle + half);
      }
      return quantizer;
    };
    key = side(true), value = side(false);
    layout::SideShape key_shape, value_shape;
    key_shape.kv_heads = value_shape.kv_heads = p.kv_heads;
    key_shape.head_dim = value_shape.head_dim = p.head_dim;
    key_shape.bits = p.key_bits, value_shape.bits = p.value_bits;
    value_shape.token_ranges = true;
    if (p.outliers > 0) {
      key_shape.varying_outliers = true;
      key_shape.outlier_capacity = layout::outlier_page_capacity(p.outliers, p.width());
      value_shape.outliers_per_end = outliers_per_end(p.outliers, p.width());
    }
    page = layout::page_layout(key_shape, value_shape);
    for (const int chunk : p.chunks) tokens += chunk;
    for (auto* numbers : {&keys, &values}) {
      for (int i = 0; i < tokens * p.width(); ++i) {
        float x = unit() * std::normal_distribution<float>()(random);
        if (p.ties) x = unit() * std::round(x / unit());  // many equal values, zeros of both signs
        numbers->push_back(x);
      }
    }
  }
  float unit() const { return std::ldexp(1.0f, problem.exponent); }
  float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(random); }

  Problem problem;
  std::mt19937 random;
  SideQuantizer key, value;
  layout::PageLayout page;
  int tokens = 0;
  std::vector<float> keys, values;
};

std::vector<float> boundaries_of(const SideQuantizer& quantizer) {
  std::vector<float> all;
  for (const Codebook& codebook : quantizer.codebooks) {
    const std::vector<float> boundaries = codebook.boundaries();
    all.insert(all.end(), boundaries.begin(), boundaries.end());
  }
  return all;
}

/// What the GPU wrote: pages in order, the chain of every page's overflow appended as plain entries.
struct Written {
  std::vector<std::uint8_t> pages, overflow;
  std::vector<std::uint16_t> sink_keys, sink_values;
  cuda::AppendReport report;
};

Written append_on_gpu(const Setup& setup) {
  const Problem& p = setup.problem;
  const auto pages = static_cast<std::size_t>(layout::pages(setup.tokens));
  const auto blocks = static_cast<std::size_t>(cuda::append_overflow_blocks(setup.page.key, setup.tokens)) + 64;
  const std::int64_t block_bytes = layout::overflow_block(setup.page.key).bytes;
  std::vector<std::uint32_t> table, free;
  for (std::size_t page = 0; page < pages; ++page) table.push_back(static_cast<std::uint32_t>(pages - 1 - page));
  for (std::size_t block = 0; block < blocks; ++block) free.push_back(static_cast<std::uint32_t>(block));
  const std::vector<std::int32_t> free_count = {static_cast<std::int32_t>(blocks)};
  const DeviceBytes pool(pages * static_cast<std::size_t>(setup.page.bytes)),
      overflow(blocks * static_cast<std::size_t>(block_bytes)),
      block_table = upload(table), free_blocks = upload(free), count = upload(free_count),
      lower = upload(setup.key.lower), upper = upload(setup.key.upper),
      key_boundaries = upload(boundaries_of(setup.key)), value_boundaries = upload(boundaries_of(setup.value)),
      report(sizeof(cuda::AppendReport)), sink_keys(static_cast<std::size_t>(p.sinks * p.width() * 2)),
      sink_values(static_cast<std::size_t>(p.sinks * p.width() * 2)), keys = upload(setup.keys),
      values = upload(setup.values);
  cuda::QuantizeAppend append;
  append.page = setup.page;
  append.pages = pool.as<std::uint8_t>();
  append.block_table = block_table.as<std::uint32_t>();
  append.block_table_stride = static_cast<std::int64_t>(pages);
  append.batch = 1;
  append.type = cuda::Number::Float;
  const int books = p.own_books ? p.kv_heads : 1;
  append.key_tables = {lower.as<float>(),
                       upper.as<float>(),
                       key_boundaries.as<float>(),
                       books,
                       p.exponent,
                       outlier_cap(p.cap, p.width())};
  append.value_tables = {nullptr, nullptr, value_boundaries.as<float>(), books, p.exponent, 0};
  append.sinks = p.sinks;
  append.sink_keys = sink_keys.as<std::uint16_t>(), append.sink_values = sink_values.as<std::uint16_t>();
  append.key_overflow = overflow.as<std::uint8_t>();
  append.free_blocks = free_blocks.as<std::uint32_t>(), append.free_count = count.as<std::int32_t>();
  append.report = report.as<cuda::AppendReport>();
  int done = 0;
  for (const int chunk : p.chunks) {
    const std::vector<std::int32_t> length = {done}, first = {0, chunk};
    const DeviceBytes lengths = upload(length), firsts = upload(first);
    append.lengths = lengths.as<std::int32_t>(), append.first = firsts.as<std::int32_t>();
    append.most_tokens = chunk;
    append.key = keys.as<float>() + done * p.width(), append.value = values.as<float>() + done * p.width();
    REQUIRE(cuda::quantize_append(append, nullptr) == cuda::Status::Ok);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    done += chunk;
  }
  Written written;
  const auto bytes = static_cast<std::size_t>(setup.page.bytes);
  std::vector<std::uint8_t> raw(pages * bytes);
  pool.download(raw.data(), raw.size());
  for (std::size_t page = 0; page < pages; ++page) {
    written.pages.insert(written.pages.end(), raw.begin() + static_cast<std::ptrdiff_t>(table[page] * bytes),
                         raw.begin() + static_cast<std::ptrdiff_t>((table[page] + 1) * bytes));
  }
  written.overflow.resize(blocks * static_cast<std::size_t>(block_bytes));
  overflow.download(written.overflow.data(), written.overflow.size());
  written.sink_keys.resize(static_cast<std::size_t>(p.sinks * p.width())), written.sink_values = written.sink_keys;
  sink_keys.download(written.sink_keys.data(), 2 * written.sink_keys.size());
  sink_values.download(written.sink_values.data(), 2 * written.sink_values.size());
  report.download(&written.report, sizeof written.report);
  return written;
}

/// Every stored number of the GPU's pages against what SideEncoder says of the same tokens.
void compare(const Setup& setup, const Written& written) {
  const Problem& p = setup.problem;
  const int width = p.width(), first = std::min(p.sinks, setup.tokens);
  const layout::OverflowBlock block = layout::overflow_block(setup.page.key);
  std::size_t wrong_codes = 0, wrong_ranges = 0, wrong_entries = 0, wrong_counts = 0;
  for (const bool key : {true, false}) {
    const layout::SideShape& shape = key ? setup.page.key : setup.page.value;
    const layout::SideParts& parts = key ? setup.page.key_parts : setup.page.value_parts;
    EncodedTokens encoded;
    const std::vector<float>& x = key ? setup.keys : setup.values;
    SideEncoder(key ? setup.key : setup.value)
        .encode(std::span(x).subspan(static_cast<std::size_t>(first * width)), encoded);
    using Entry = std::tuple<int, int, int, std::uint16_t>;  // head, slot, channel of the head, value
    std::vector<std::vector<Entry>> lists(static_cast<std::size_t>(layout::pages(setup.tokens)));
    for (int token = first; token < setup.tokens; ++token) {
      const std::uint8_t* page = written.pages.data() + token / layout::kPageTokens * setup.page.bytes;
      const int slot = token % layout::kPageTokens, index = token - first;
      for (int channel = 0; channel < width; ++channel) {
        unsigned code = 0;
        for (int place = 0; place < shape.bits; ++place) {
          const int bit = slot * shape.bits + place;
          code |= (page[parts.codes + channel * shape.row_bytes() + bit / 8] >> (bit % 8) & 1u) << place;
        }
        wrong_codes += code != encoded.codes[static_cast<std::size_t>(index * width + channel)];
      }
      if (!key) {
        wrong_ranges += std::memcmp(page + parts.ranges + 4 * slot,
                                    &encoded.token_range[static_cast<std::size_t>(2 * index)], 4) != 0;
      }
      for (std::uint32_t entry = encoded.outlier_begin[static_cast<std::size_t>(index)];
           entry < encoded.outlier_begin[static_cast<std::size_t>(index + 1)]; ++entry) {
        const auto channel = static_cast<int>(encoded.outlier_channel[entry]);
        lists[static_cast<std::size_t>(token / layout::kPageTokens)].emplace_back(
            channel / p.head_dim, slot, channel % p.head_dim, encoded.outlier_value[entry]);
      }
    }
    for (std::size_t number = 0; shape.has_outliers() && number < lists.size(); ++number) {
      std::sort(lists[number].begin(), lists[number].end());
      const std::uint8_t* page = written.pages.data() + static_cast<std::int64_t>(number) * setup.page.bytes;
      std::vector<std::uint16_t> counts(static_cast<std::size_t>(p.kv_heads)), stored(counts.size());
      std::memcpy(stored.data(), page + parts.outlier_counts, 2 * stored.size());
      const std::uint8_t *values = page + parts.outlier_values, *channels = page + parts.outlier_channels;
      const std::uint8_t* slots = page + parts.outlier_tokens;
      std::uint32_t link = layout::kNoBlock;
      if (shape.varying_outliers) std::memcpy(&link, page + parts.overflow_link, 4);
      std::int64_t at = 0, room = shape.page_entries();
      for (const auto& [head, slot, channel, value] : lists[number]) {
        ++counts[static_cast<std::size_t>(head)];
        if (at == room) {
          if (link == layout::kNoBlock) {
            ++wrong_entries;
            break;
          }
          values = written.overflow.data() + link * block.bytes, channels = values + block.channels;
          slots = values + block.tokens;
          std::memcpy(&link, values + block.link, 4);
          at = 0, room = layout::kOutlierBlockEntries;
        }
        std::uint16_t found;
        std::memcpy(&found, values + 2 * at, 2);
        int token = 0;
        for (int bit = 0; bit < 6; ++bit) token |= (slots[(6 * at + bit) / 8] >> ((6 * at + bit) % 8) & 1) << bit;
        wrong_entries += found != value || channels[at] != channel || token != slot;
        ++at;
      }
      wrong_counts += stored != counts;
      wrong_counts += shape.varying_outliers && link != layout::kNoBlock;
      for (; at < room; ++at) wrong_entries += values[2 * at] != 0 || values[2 * at + 1] != 0 || channels[at] != 0;
    }
  }
  CAPTURE(p.kv_heads, p.head_dim, p.key_bits, p.value_bits, p.outliers, p.seed);
  CHECK(wrong_codes == 0);
  CHECK(wrong_ranges == 0);
  CHECK(wrong_entries == 0);
  CHECK(wrong_counts == 0);
  CHECK(written.report.overflow == ~0ull);
  CHECK(written.report.blocks_missing == ~0ull);
  for (int i = 0; i < first * width; ++i) {
    const float stored = std::ldexp(setup.keys[static_cast<std::size_t>(i)], -p.exponent);
    if (written.sink_keys[static_cast<std::size_t>(i)] != float_to_half(stored)) FAIL("sink " << i);
  }
}

bool skipped() {
  const std::string reason = no_gpu_reason();
  if (!reason.empty()) WARN("kvq test skipped: " << reason);
  return !reason.empty();
}

void check(const Problem& problem) {
  const Setup setup(problem);
  compare(setup, append_on_gpu(setup));
}

}  // namespace

TEST_CASE("Appending on the GPU stores what the encoder on the CPU says, for every width", "[gpu]") {
  if (skipped()) return;
  for (int bits = 1; bits <= 8; ++bits) {
    Problem problem;
    problem.key_bits = bits, problem.value_bits = 9 - bits;
    problem.seed = static_cast<unsigned>(bits);
    check(problem);
  }
}

TEST_CASE("Appending on the GPU takes every shape", "[gpu]") {
  if (skipped()) return;
  for (const auto& [kv_heads, head_dim] :
       std::vector<std::pair<int, int>>{{3, 64}, {8, 128}, {5, 80}, {1, 256}, {4, 96}, {32, 128}, {20, 80}}) {
    Problem problem;
    problem.kv_heads = kv_heads, problem.head_dim = head_dim;
    problem.own_books = kv_heads < 8;
    check(problem);
  }
}

TEST_CASE("Appending on the GPU resolves ties, caps and full tokens as the CPU does", "[gpu]") {
  if (skipped()) return;
  Problem problem;
  problem.ties = true;
  for (const double outliers : {0.0, 0.01, 0.1, 1.0}) {
    problem.outliers = outliers;
    check(problem);
  }
  problem.outliers = 0.05, problem.cap = 0.1;
  check(problem);
  problem.cap = 0.0, problem.ties = false;
  for (const int exponent : {-30, 30}) {
    problem.exponent = exponent;
    check(problem);
  }
}

TEST_CASE("The bytes that the GPU appends do not depend on the chunks", "[gpu]") {
  if (skipped()) return;
  Problem problem;
  const Written pieces = append_on_gpu(Setup(problem));
  problem.chunks = {331};
  const Written whole = append_on_gpu(Setup(problem));
  problem.chunks.assign(331, 1);
  const Written single = append_on_gpu(Setup(problem));
  const Setup setup(problem);
  // Which overflow blocks are taken may differ; everything before the link may not.
  std::size_t different = 0;
  for (std::size_t at = 0; at < whole.pages.size(); ++at) {
    if (static_cast<std::int64_t>(at) % setup.page.bytes / 4 == setup.page.key_parts.overflow_link / 4) continue;
    different += pieces.pages[at] != whole.pages[at] || single.pages[at] != whole.pages[at];
  }
  CHECK(different == 0);
}

TEST_CASE("The GPU reports values that do not fit", "[gpu]") {
  if (skipped()) return;
  Problem problem;
  problem.chunks = {40};
  Setup setup(problem);
  setup.keys[static_cast<std::size_t>(7 * problem.width() + 5)] = 1e6f;
  const Written written = append_on_gpu(setup);
  CHECK(written.report.overflow == (7ull << 17 | 5ull));
}
