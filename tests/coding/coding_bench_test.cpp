// Not part of a test run: `test_coding "[bench]"` prints the speed of encoding and decoding pages of 4-bit codes beside
// memcpy and zlib's inflate in the same run.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>

#include <zlib.h>

#include <kvq/coding/canonical_huffman.h>
#include <kvq/coding/entropy.h>
#include <kvq/coding/rans.h>

#include "coding/streams.h"

using namespace kvq;

namespace {

/// Processor time of this thread, so that others on the machine count less.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Best of several, in bytes of codes per second.
double codes_per_second(std::size_t codes, const std::function<void()>& work) {
  double best = 1e300;
  for (int round = 0; round < 60; ++round) {
    const double begin = cpu_seconds();
    work();
    best = std::min(best, cpu_seconds() - begin);
  }
  return static_cast<double>(codes) / best;
}

template <typename Coder>
void measure(const char* name, const Coder& coder, const std::vector<std::uint8_t>& codes, std::size_t page) {
  std::vector<std::vector<std::byte>> pages(codes.size() / page);
  const auto part = [&](std::size_t index) { return std::span<const std::uint8_t>(codes).subspan(index * page, page); };
  const double encoding = codes_per_second(codes.size(), [&] {
    for (std::size_t index = 0; index < pages.size(); ++index) {
      pages[index].clear();
      coder.encode(part(index), pages[index]);
    }
  });
  std::vector<std::uint8_t> decoded(codes.size());
  const double decoding = codes_per_second(codes.size(), [&] {
    for (std::size_t index = 0; index < pages.size(); ++index)
      coder.decode(pages[index], std::span<std::uint8_t>(decoded).subspan(index * page, page));
  });
  CHECK(decoded == codes);
  std::size_t bytes = 0;
  for (const auto& one : pages) bytes += one.size();
  std::printf("%-10s %6.3f bits  encode %7.0f MB/s  decode %7.0f MB/s\n", name,
              8.0 * static_cast<double>(bytes) / static_cast<double>(codes.size()), encoding / 1e6, decoding / 1e6);
}

}  // namespace

TEST_CASE("Speed of entropy coding beside memcpy and inflate", "[.][bench]") {
  constexpr std::size_t kPage = 128 * 128;
  for (const int levels : {4, 8, 16, 256}) {
    const auto codes = kvq::test::drawn_symbols(kvq::test::bell(levels), 32 * kPage, 1);
    const auto counts = count_symbols(codes);
    const auto used = std::span<const std::uint64_t>(counts).first(static_cast<std::size_t>(levels));
    std::printf("%d levels, entropy %.3f bits, pages of %zu codes\n", levels, shannon_bits(used), kPage);
    measure("Huffman", CanonicalHuffman(huffman_lengths(used)), codes, kPage);
    measure("rANS", RansCoder(rans_frequencies(used)), codes, kPage);

    uLongf packed_size = compressBound(codes.size());
    std::vector<Bytef> packed(packed_size);
    compress2(packed.data(), &packed_size, codes.data(), codes.size(), 6);
    std::vector<std::uint8_t> copy(codes.size());
    const double inflating = codes_per_second(codes.size(), [&] {
      uLongf size = copy.size();
      REQUIRE(uncompress(copy.data(), &size, packed.data(), packed_size) == Z_OK);
    });
    const double copying =
        codes_per_second(codes.size(), [&] { std::memcpy(copy.data(), codes.data(), codes.size()); });
    std::printf("%-10s %6.3f bits  %24s inflate %6.0f MB/s\n%-10s %41s copy   %7.0f MB/s\n", "zlib",
                8.0 * static_cast<double>(packed_size) / static_cast<double>(codes.size()), "", inflating / 1e6,
                "memcpy", "", copying / 1e6);
  }
}
