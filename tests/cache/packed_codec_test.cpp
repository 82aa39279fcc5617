// Formats of their own in packed caches: q4_0, q8_0, fp8, turbo and codecs of single head vectors. Bytes are read here
// bit by bit as FORMAT.md says; answers are those of the simulated cache.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "cache/packed_support.h"
#include "quant/codec_support.h"
#include "support/catch.h"

#include <kvq/cache/packed_cache.h>
#include <kvq/cache/simulated_cache.h>
#include <kvq/core/error.h>
#include <kvq/quant/head_rows.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr std::int64_t kTokens = 150;

std::shared_ptr<Quantizer> quantizer_of(const std::string& recipe, const KvShape& shape) {
  auto quantizer = std::make_shared<Quantizer>(codec_quantizer(recipe, shape));
  Rng rng(7);
  for (LayerQuantizer& layer : quantizer->layers) {
    for (const Side which : kSides) {
      SideQuantizer& side = layer.side(which);
      side.exponent = which == Side::Key ? -2 : 1;
      if (has_own_format(side.recipe.codebook)) continue;
      side.codebooks.push_back(random_codebook(side.recipe, code_levels(side.recipe), rng));
      for (int channel = 0; stores_thresholds(side.recipe) && channel < side.width(); ++channel)
        side.lower.push_back(-1.0f), side.upper.push_back(1.0f);
    }
  }
  return quantizer;
}

/// Heads of 32: blocks fit, and Hadamard matrices.
const std::vector<std::string>& own_recipes() {
  static const std::vector<std::string> recipes = {
      "q4_0",
      "q8_0:sink=3",
      "fp8",
      "q4_0:rope=post,recent=20",
      "turbo1",
      "turbo2:rotation=hadamard,sink=0",
      "turbo3:norm=fit,sink=4",
      "turbo4:rotation=hadamard,norm=unbiased,recent=16",
      "turbo3:rope=post",
      "turbo8:rope=post,rotation=hadamard,sink=2",
      "turbo3:qjl",
      "turbo1:qjl,rope=post",
      "turbo2:outlier-channels=8,outlier-bits=5",
      "turbo3:outlier-channels=8,outlier-bits=4,rotation=hadamard,rope=post,flush=7",
      "turbo2:outlier-channels=4,outlier-bits=3,qjl",
      "scalar4",
      "scalar3:scale=max,levels=even,share=head,recent=9",
      "pq:m=8,bits=5",
      "pq:m=4,bits=3,norm,sink=2",
      "K=turbo4/V=nuq3",
      "K=int4/V=q8_0",
      "K=pq:m=16,bits=2/V=turbo5:rotation=hadamard"};
  return recipes;
}

double largest_of(const std::vector<double>& x) {
  double largest = 0;
  for (const double value : x) largest = std::max(largest, std::abs(value));
  return largest;
}

/// A page of 64 tokens of one layer; the tokens that it was made of.
struct Page {
  std::shared_ptr<Quantizer> quantizer;
  std::vector<AttentionInput> window;
  PackedCache cache;

  Page(const std::string& recipe, const KvShape& shape, std::uint64_t seed)
      : quantizer(quantizer_of(recipe, shape)), window(random_window(shape, 64, seed)), cache(quantizer, 1) {
    run(cache, window, {64});
  }
  const std::uint8_t* bytes() const { return cache.sequence().page(0, 0); }
  const layout::PageLayout& layout() const { return cache.sequence().pool().layer(0).page; }
  const layout::SideShape& shape(Side side) const { return cache.sequence().pool().layer(0).shape(side); }
  const layout::SideParts& parts(Side side) const { return cache.sequence().pool().layer(0).parts(side); }
  std::vector<double> tokens(Side side) const { return doubles(side == Side::Key ? window[0].key : window[0].value); }
  /// The `index`-th number beside the codes.
  double scale(Side side, std::int64_t index) const {
    const std::uint8_t* half = bytes() + parts(side).ranges + 2 * index;
    return reference::half_value(static_cast<std::uint16_t>(half[0] | half[1] << 8));
  }
};

}  // namespace

TEST_CASE(
    "Formats of their own: the packed cache says what the simulated one says, and occupies what that one counts") {
  for (const KvShape& shape : {KvShape{2, 6, 3, 32}, KvShape{1, 2, 2, 96}}) {
    std::uint64_t seed = 1;
    for (const std::string& recipe : own_recipes()) {
      INFO(recipe << ", heads of " << shape.head_dim);
      const auto quantizer = quantizer_of(recipe, shape);
      const std::vector<AttentionInput> window = random_window(shape, kTokens, 100 + ++seed);
      SimulatedCache simulated(quantizer, 2);
      PackedCache packed(quantizer, 2);
      const std::vector<double> expected = doubles(run(simulated, window, {kTokens}));
      const at::Tensor result = run(packed, window, {kTokens});
      CHECK(largest_difference(expected, doubles(result)) < 5e-6 * std::max(1.0, largest_of(expected)));
      CHECK(packed.bytes() == simulated.footprint().total());
      for (const std::int64_t size : {1, 7, 64}) {
        PackedCache pieces(quantizer, 1);
        CHECK(largest_difference(doubles(result), doubles(run(pieces, window, equal_parts(kTokens, size)))) < 5e-6);
        CHECK(pieces.sequence().content(0) == packed.sequence().content(0));
      }
      // What is cut off leaves nothing behind.
      PackedCache cropped(quantizer, 2), shorter(quantizer, 2);
      run(cropped, window, {kTokens});
      cropped.crop(70);
      const bool waits = exact_window(quantizer->recipe, Side::Key).waits();
      run(shorter, {part_of(window[0], 0, 70)}, {70});
      if (!waits) CHECK(cropped.sequence().content(0) == shorter.sequence().content(0));
    }
  }
}

TEST_CASE("Pages of turbo hold rows of codes and norms: read bit by bit") {
  const Page page("K=turbo3/V=turbo2:outlier-channels=8,outlier-bits=5", {1, 2, 2, 32}, 5);
  CHECK(page.layout().key.code_bytes() == 2 * 64 * 32 * 3 / 8);
  CHECK(page.layout().value.code_bytes() == 2 * 64 * (24 * 2 + 8 * 5) / 8);
  CHECK(page.layout().key.range_bytes() == 64 * 2 * 2);
  CHECK(page.layout().value.range_bytes() == 64 * 2 * 2 * 2);
  double squares = 0, errors = 0;
  for (const Side which : kSides) {
    const SideQuantizer& side = page.quantizer->layers[0].side(which);
    const std::uint8_t* codes = page.bytes() + page.parts(which).codes;
    const std::int64_t head_bits = 4 * page.shape(which).code_bytes();
    const auto norms = static_cast<std::int64_t>(side.turbo->parts.size());
    const std::vector<double> x = page.tokens(which);
    for (int head = 0; head < 2; ++head) {
      for (std::int64_t slot = 1; slot < 64; ++slot) {  // 0 is a sink
        std::int64_t row_bit = head * head_bits;
        for (std::int64_t part = 0; part < norms; ++part) {
          const TurboPart& turbo = side.turbo->parts[static_cast<std::size_t>(part)];
          const double norm = std::ldexp(page.scale(which, (slot * 2 + head) * norms + part), side.exponent);
          std::vector<double> z;
          for (int row = 0; row < turbo.dim(); ++row, row_bit += 64 * turbo.bits)
            z.push_back(
                turbo.levels[static_cast<std::size_t>(code_at(codes, row_bit + slot * turbo.bits, turbo.bits))]);
          // The channels of the part: those that are no outliers, then the outliers.
          int at = 0;
          for (int channel = 0; channel < 32; ++channel) {
            const bool outlier = norms == 2 && channel < 16 && channel % 2 == head % 2;
            if (norms == 2 && outlier != (part == 1)) continue;
            double value = 0;
            for (int row = 0; row < turbo.dim(); ++row)
              value += z[static_cast<std::size_t>(row)] *
                       turbo.rotation.table()[static_cast<std::size_t>(row * turbo.dim() + at)];
            const double expected = x[static_cast<std::size_t>((slot * 2 + head) * 32 + channel)];
            squares += expected * expected;
            errors += (norm * value - expected) * (norm * value - expected);
            ++at;
          }
        }
      }
    }
    // The paper's bound for 3 bits and for 2: 0.03 and 0.117.
    CHECK(errors / squares < (which == Side::Key ? 0.045 : 0.14));
    CHECK(errors / squares > 0.01);
  }
}

TEST_CASE("Pages of q4_0 and q8_0 hold ggml's numbers: read bit by bit") {
  const Page page("K=q4_0:rope=pre/V=q8_0", {1, 2, 2, 64}, 9);
  for (const Side which : kSides) {
    const bool four = which == Side::Key;
    const std::uint8_t* codes = page.bytes() + page.parts(which).codes;
    const std::vector<double> x = page.tokens(which);
    for (std::int64_t slot = 1; slot < 64; ++slot) {
      for (int block = 0; block < 4; ++block) {  // 2 heads of 2
        const double d = page.scale(which, slot * 4 + block);
        double largest = 0;
        for (int channel = 32 * block; channel < 32 * (block + 1); ++channel) {
          const int bits = four ? 4 : 8;
          const int code = code_at(codes, (std::int64_t{64} * channel + slot) * bits, bits);
          const double expected = x[static_cast<std::size_t>(slot * 128 + channel)];
          largest = std::max(largest, std::abs(expected));
          // Half a step, and what rounding d to fp16 adds; a step at the end that q4_0 has not.
          CHECK(std::abs(d * (code - (four ? 8 : 128)) - expected) <= std::abs(d) * (four && code == 15 ? 1.01 : 0.57));
        }
        CHECK(std::abs(std::abs(d) * (four ? 8 : 127) - largest) < 1e-3 * largest);
      }
    }
  }
}

TEST_CASE("Formats of their own: any packed byte that is flipped changes the output") {
  const KvShape shape = {1, 2, 2, 32};
  for (const std::string recipe :
       {"q4_0:sink=0", "turbo3:sink=0", "turbo2:qjl,sink=0", "K=pq:m=4,bits=8,norm,sink=0/V=fp8"}) {
    INFO(recipe);
    const auto quantizer = quantizer_of(recipe, shape);
    auto pool = std::make_shared<PackedPool>(quantizer);
    PackedSequence sequence(pool);
    Rng rng(8);
    const AttentionInput input = {0, 0, random_values(64, 2, 32, rng, false), random_values(64, 2, 32, rng, false),
                                  random_values(64, 2, 32, rng, false)};
    sequence.append(0, numbers(input.key), numbers(input.value), 1);
    const auto says = [&] { return answer(sequence, 0, input.query); };
    const std::vector<float> before = says();
    auto* bytes = const_cast<std::uint8_t*>(sequence.page(0, 0));
    int unchanged = 0;
    for (std::int64_t offset = 0; offset < pool->layer(0).page.used; ++offset) {
      bytes[offset] ^= 0x01;
      unchanged += says() == before;
      bytes[offset] ^= 0x01;
    }
    CHECK(unchanged == 0);
  }
}

TEST_CASE("Packed caches name the token and the channel of a norm that does not fit") {
  const KvShape shape = {1, 2, 2, 32};
  const auto quantizer = quantizer_of("turbo3", shape);
  Rng rng(3);
  AttentionInput input = random_input(shape, 0, 70, rng);
  input.value.mutable_data_ptr<float>()[66 * 64 + 40] = 3e5f;
  PackedCache cache(quantizer, 1);
  try {
    cache.attend(input);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Numeric);
    CHECK_THAT(error.what(), ContainsSubstring("token 66") && ContainsSubstring("channel 8"));
  }
  CHECK(cache.tokens() == 0);
}
