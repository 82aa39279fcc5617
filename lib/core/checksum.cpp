#include <kvq/core/checksum.h>

#include <array>
#include <bit>
#include <cstring>

namespace kvq {

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                        kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

template <typename Word>
std::uint64_t word_at(const unsigned char* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t round_of(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

}  // namespace

std::uint64_t checksum_of(const void* data, std::int64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::int64_t left = bytes;
  std::uint64_t sum = kPrime5;
  if (left >= 32) {
    std::array<std::uint64_t, 4> lanes = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
    for (; left >= 32; left -= 32, at += 32) {
      for (std::size_t lane = 0; lane < 4; ++lane)
        lanes[lane] = round_of(lanes[lane], word_at<std::uint64_t>(at + 8 * lane));
    }
    sum = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) + std::rotl(lanes[3], 18);
    for (const std::uint64_t lane : lanes) sum = (sum ^ round_of(0, lane)) * kPrime1 + kPrime4;
  }
  sum += static_cast<std::uint64_t>(bytes);
  for (; left >= 8; left -= 8, at += 8)
    sum = std::rotl(sum ^ round_of(0, word_at<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  for (; left >= 4; left -= 4, at += 4)
    sum = std::rotl(sum ^ (word_at<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
  for (; left > 0; --left, ++at) sum = std::rotl(sum ^ (*at * kPrime5), 11) * kPrime1;
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
}

}  // namespace kvq
