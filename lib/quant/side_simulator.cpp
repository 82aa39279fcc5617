#include <kvq/quant/side_simulator.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <vector>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/half.h>
#include <kvq/core/parallel.h>
#include <kvq/quant/block_formats.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/pooled_range.h>
#include <kvq/quant/range_finder.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/quant/vector_side.h>
#include <kvq/vector/vector_codec.h>

namespace kvq {

/// One way of encoding and decoding.
struct SideSimulator::Method {
  virtual ~Method() = default;
  virtual void round_trip(std::span<float> x, std::int64_t first_position, int threads,
                          std::span<std::uint32_t> outliers) const = 0;
  /// Where tokens are coded together with others of the sequence.
  virtual std::unique_ptr<VectorBlocks> start() const { return nullptr; }
};

namespace {

constexpr std::int64_t kSimulateTokens = 64;

std::uint16_t exact_half(float value, float to_stored, float from_stored, std::int64_t token, int channel) {
  const std::uint16_t half = float_to_half(value * to_stored);
  if ((half & 0x7fffu) >= 0x7c00u) throw ExactOverflow(token, channel, value, kHalfMax * from_stored);
  return half;
}

struct Streaming final : SideSimulator::Method {
  explicit Streaming(const SideQuantizer& quantizer) : encoder(quantizer) {}
  void round_trip(std::span<float> x, std::int64_t, int threads, std::span<std::uint32_t> outliers) const override {
    encoder.round_trip(x, threads, outliers);
  }
  SideEncoder encoder;
};

struct BlockFormat final : SideSimulator::Method {
  explicit BlockFormat(const SideQuantizer& quantizer)
      : kind(quantizer.recipe.codebook), width(static_cast<std::size_t>(quantizer.width())) {
    check_block_width(kind, quantizer.head_dim);
  }
  void round_trip(std::span<float> x, std::int64_t, int threads, std::span<std::uint32_t> outliers) const override {
    std::fill(outliers.begin(), outliers.end(), 0u);
    const auto tokens = static_cast<std::int64_t>(x.size() / width);
    parallel_ranges(tokens, kSimulateTokens, threads, [&](std::int64_t begin, std::int64_t end) {
      std::vector<float> before(width);
      for (std::int64_t token = begin; token < end; ++token) {
        const auto row = x.subspan(static_cast<std::size_t>(token) * width, width);
        std::copy(row.begin(), row.end(), before.begin());
        if (block_round_trip(kind, row)) continue;
        const auto largest =
            std::max_element(before.begin(), before.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
        throw ExactOverflow(token, static_cast<int>(largest - before.begin()), *largest, largest_of_block(kind));
      }
    });
  }
  CodebookKind kind;
  std::size_t width;
};

struct Grouped final : SideSimulator::Method {
  /// Channels that share a codebook.
  struct Segment {
    int begin, count;
    std::vector<float> boundaries, decoded;
  };

  explicit Grouped(const SideQuantizer& quantizer)
      : finder(quantizer),
        loops(encode_loops(best_simd_level())),
        bits(quantizer.recipe.bits),
        to_stored(power_of_two(-quantizer.exponent)),
        from_stored(power_of_two(quantizer.exponent)) {
    const int books = codebook_count(quantizer.recipe, quantizer.kv_heads, quantizer.head_dim);
    const std::size_t levels = std::size_t{1} << bits;
    if (quantizer.codebooks.size() != static_cast<std::size_t>(books)) {
      fail(ErrorKind::Mismatch,
           fmt::format("quantizer has {} codebooks; its recipe needs {}", quantizer.codebooks.size(), books));
    }
    const int segment_width = quantizer.width() / books;
    for (int book = 0; book < books; ++book) {
      const Codebook& codebook = quantizer.codebooks[static_cast<std::size_t>(book)];
      if (codebook.centroids.size() != levels || codebook.decoded.size() != levels) {
        fail(ErrorKind::Mismatch, fmt::format("codebook {} has {} centroids; {} bits need {}", book,
                                              codebook.centroids.size(), bits, levels));
      }
      segments.push_back({book * segment_width, segment_width, codebook.boundaries(), codebook.decoded});
    }
  }

  void round_trip(std::span<float> x, std::int64_t first_position, int threads,
                  std::span<std::uint32_t> outliers) const override {
    const std::int64_t unit = finder.unit_tokens(), width = finder.width();
    const std::int64_t tokens = static_cast<std::int64_t>(x.size()) / width;
    const std::size_t parts = outliers.size() / static_cast<std::size_t>(tokens);
    const std::int64_t first_unit = first_position / unit, last_unit = (first_position + tokens + unit - 1) / unit;
    parallel_for(last_unit - first_unit, threads, [&](std::int64_t index) {
      const std::int64_t begin = std::max<std::int64_t>((first_unit + index) * unit - first_position, 0);
      const std::int64_t end = std::min((first_unit + index + 1) * unit - first_position, tokens);
      try {
        block(x.subspan(static_cast<std::size_t>(begin * width), static_cast<std::size_t>((end - begin) * width)),
              first_position + begin,
              outliers.empty() ? outliers
                               : outliers.subspan(static_cast<std::size_t>(begin) * parts,
                                                  static_cast<std::size_t>(end - begin) * parts));
      } catch (const ExactOverflow& overflow) {
        throw ExactOverflow(begin + overflow.token, overflow.channel, overflow.value, overflow.limit);
      }
    });
  }

  void block(std::span<float> x, std::int64_t first_position, std::span<std::uint32_t> outliers) const {
    FoundRanges found;
    finder.find(x, first_position, found);
    const auto width = static_cast<std::size_t>(finder.width());
    std::vector<float> x_hat(width), decoded(width);
    std::vector<std::uint8_t> codes(width);
    for (std::size_t token = 0; token < found.row.size(); ++token) {
      const auto row = x.subspan(token * width, width);
      const std::size_t at = static_cast<std::size_t>(found.row[token]) * width;
      loops.normalise_channels(row.data(), found.zero.data() + at, found.inverse.data() + at, finder.width(),
                               x_hat.data());
      for (const Segment& segment : segments) {
        loops.assign_codes(x_hat.data() + segment.begin, segment.count, segment.boundaries.data(), bits,
                           codes.data() + segment.begin);
        const std::size_t from = at + static_cast<std::size_t>(segment.begin);
        loops.decode_channels(codes.data() + segment.begin, segment.count, segment.decoded.data(),
                              found.zero.data() + from, found.scale.data() + from, decoded.data() + segment.begin);
      }
      for (std::size_t channel = 0; channel < width; ++channel) {
        if (!found.exact[token * width + channel]) continue;
        decoded[channel] = half_to_float(exact_half(row[channel], to_stored, from_stored,
                                                    static_cast<std::int64_t>(token), static_cast<int>(channel))) *
                           from_stored;
      }
      std::copy(decoded.begin(), decoded.end(), row.begin());
      if (outliers.empty()) continue;
      const std::size_t parts = outliers.size() / found.row.size();
      const std::span<std::uint32_t> counts = outliers.subspan(token * parts, parts);
      if (parts == 1) {
        counts[0] = found.exact_count[token];
        continue;
      }
      std::fill(counts.begin(), counts.end(), 0u);
      for (std::size_t channel = 0; channel < width; ++channel)
        counts[channel * parts / width] += found.exact[token * width + channel] ? 1 : 0;
    }
  }

  RangeFinder finder;
  const EncodeLoops& loops;
  int bits;
  float to_stored, from_stored;
  std::vector<Segment> segments;
};

/// Head vectors, each by itself, to their bytes and back.
struct HeadVectors final : SideSimulator::Method {
  HeadVectors(const SideQuantizer& quantizer, std::vector<std::shared_ptr<const VectorCodec>> head_codecs)
      : kv_heads(quantizer.kv_heads), head_dim(quantizer.head_dim), codecs(std::move(head_codecs)) {
    shared = codecs.back() == codecs.front();
  }

  void round_trip(std::span<float> x, std::int64_t, int threads, std::span<std::uint32_t> outliers) const override {
    std::fill(outliers.begin(), outliers.end(), 0u);
    const std::int64_t width = std::int64_t{kv_heads} * head_dim;
    parallel_ranges(static_cast<std::int64_t>(x.size()) / width, kSimulateTokens, threads,
                    [&](std::int64_t begin, std::int64_t end) {
                      const auto part = x.subspan(static_cast<std::size_t>(begin * width),
                                                  static_cast<std::size_t>((end - begin) * width));
                      if (shared) {
                        code(*codecs[0], part, begin * kv_heads, 1, 0);
                      } else {
                        for (int kv_head = 0; kv_head < kv_heads; ++kv_head) of_head(kv_head, part, begin);
                      }
                    });
  }

  /// Rows number `first` + i · `step` of all kv heads' rows.
  void code(const VectorCodec& codec, std::span<float> rows, std::int64_t first, int step, int kv_head) const {
    std::vector<std::byte> bytes;
    try {
      codec.encode(rows, bytes);
    } catch (const VectorOverflow& overflow) {
      const std::int64_t row = first + overflow.row * step + kv_head;
      throw ExactOverflow(row / kv_heads, static_cast<int>(row % kv_heads) * head_dim + overflow.channel,
                          overflow.value, overflow.limit);
    }
    codec.decode(bytes, rows);
  }

  void of_head(int kv_head, std::span<float> x, std::int64_t first_token) const {
    const auto dim = static_cast<std::size_t>(head_dim), width = dim * static_cast<std::size_t>(kv_heads);
    std::vector<float> rows(x.size() / static_cast<std::size_t>(kv_heads));
    float* head = x.data() + static_cast<std::size_t>(kv_head) * dim;
    for (std::size_t token = 0; token < x.size() / width; ++token)
      std::copy_n(head + token * width, dim, rows.begin() + static_cast<std::ptrdiff_t>(token * dim));
    code(*codecs[static_cast<std::size_t>(kv_head)], rows, first_token * kv_heads, kv_heads, kv_head);
    for (std::size_t token = 0; token < x.size() / width; ++token)
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(token * dim), dim, head + token * width);
  }

  int kv_heads, head_dim;
  bool shared = false;  ///< one codec for all heads
  std::vector<std::shared_ptr<const VectorCodec>> codecs;
};

/// Head vectors that are coded together with others of their sequence.
struct HeadBlocks final : SideSimulator::Method {
  explicit HeadBlocks(std::vector<std::shared_ptr<const VectorCodec>> head_codecs) : codecs(std::move(head_codecs)) {}
  void round_trip(std::span<float>, std::int64_t, int, std::span<std::uint32_t>) const override { KVQ_ASSERT(false); }
  std::unique_ptr<VectorBlocks> start() const override { return std::make_unique<VectorBlocks>(codecs); }
  std::vector<std::shared_ptr<const VectorCodec>> codecs;
};

std::shared_ptr<const SideSimulator::Method> make_method(const SideQuantizer& quantizer) {
  if (is_block_format(quantizer.recipe.codebook)) return std::make_shared<BlockFormat>(quantizer);
  if (codes_blocks(quantizer.recipe)) return std::make_shared<HeadBlocks>(head_codecs(quantizer));
  if (has_own_format(quantizer.recipe.codebook))
    return std::make_shared<HeadVectors>(quantizer, head_codecs(quantizer));
  if (is_streaming(quantizer.recipe)) return std::make_shared<Streaming>(quantizer);
  return std::make_shared<Grouped>(quantizer);
}

}  // namespace

SideSimulator::SideSimulator(const SideQuantizer& quantizer)
    : to_stored_(power_of_two(-quantizer.exponent)), from_stored_(power_of_two(quantizer.exponent)) {
  quantizer_ = quantizer;
  if (quantizer.recipe.range != RangeKind::Window) method_ = make_method(quantizer);
}

void SideSimulator::round_trip(std::span<float> x, std::int64_t first_position, int threads,
                               std::span<std::uint32_t> outliers_per_token, VectorBlocks* blocks) const {
  if (x.empty()) return;
  if (blocks != nullptr) {
    std::fill(outliers_per_token.begin(), outliers_per_token.end(), 0u);
    return blocks->append(x, first_position, threads);
  }
  if (method_) return method_->round_trip(x, first_position, threads, outliers_per_token);
  // Range of the window: from here on a static one.
  SideQuantizer with_range = quantizer_;
  const SideRecipe& recipe = quantizer_.recipe;
  const int width = quantizer_.width(), group = recipe.axis == Axis::Channel ? 1 : group_channels(recipe, width);
  const std::array<std::span<const float>, 1> parts = {x};
  PooledRange range = pooled_range(parts, width, group, 0.5 * recipe.outliers, threads);
  with_range.recipe.range = RangeKind::Static;
  with_range.lower = std::move(range.lower);
  with_range.upper = std::move(range.upper);
  make_method(with_range)->round_trip(x, first_position, threads, outliers_per_token);
}

std::unique_ptr<VectorBlocks> SideSimulator::start() const { return method_ ? method_->start() : nullptr; }

void SideSimulator::round_exact(std::span<float> x) const {
  const auto channels = static_cast<std::size_t>(quantizer_.width());
  for (std::size_t index = 0; index < x.size(); ++index) {
    const auto token = static_cast<std::int64_t>(index / channels);
    x[index] =
        half_to_float(exact_half(x[index], to_stored_, from_stored_, token, static_cast<int>(index % channels))) *
        from_stored_;
  }
}

}  // namespace kvq
