#include <kvq/coding/rans.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <queue>

#include <fmt/format.h>

#include <kvq/coding/byte_io.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

constexpr std::uint32_t kRansTotal = 1u << kRansBits;
constexpr std::uint32_t kRansLeast = 1u << 16;  ///< states are kept in [2^16, 2^32)

/// Bits that one more step of frequency saves.
struct Gain {
  double bits = 0;
  std::size_t symbol = 0;
  bool operator<(const Gain& other) const { return bits != other.bits ? bits < other.bits : symbol > other.symbol; }
};

std::uint32_t read_u16(const std::byte* at) {
  if constexpr (std::endian::native == std::endian::little) {
    std::uint16_t word;  // one load, which compilers do not always make of two bytes
    std::memcpy(&word, at, 2);
    return word;
  }
  return static_cast<std::uint32_t>(at[0]) | static_cast<std::uint32_t>(at[1]) << 8;
}

}  // namespace

std::vector<std::uint16_t> rans_frequencies(std::span<const std::uint64_t> counts) {
  KVQ_ASSERT(!counts.empty() && counts.size() <= 256);
  std::vector<std::uint16_t> frequencies(counts.size(), 0);
  // The bits of the counted symbols are a sum of convex functions of their frequencies: handing out one step after the
  // other to whoever gains most ends at the minimum.
  std::priority_queue<Gain> gains;
  const auto offer = [&](std::size_t symbol) {
    const double frequency = frequencies[symbol];
    gains.push({static_cast<double>(counts[symbol]) * std::log1p(1.0 / frequency), symbol});
  };
  std::uint32_t left = kRansTotal;
  for (std::size_t symbol = 0; symbol < counts.size(); ++symbol) {
    if (counts[symbol] == 0) continue;
    frequencies[symbol] = 1;
    --left;
    offer(symbol);
  }
  if (gains.empty()) fail(ErrorKind::Numeric, "rANS model: no symbol is counted");
  for (; left > 0; --left) {
    const std::size_t symbol = gains.top().symbol;
    gains.pop();
    ++frequencies[symbol];
    offer(symbol);
  }
  return frequencies;
}

RansCoder::RansCoder(std::vector<std::uint16_t> frequencies) : frequencies_(std::move(frequencies)) {
  KVQ_ASSERT(!frequencies_.empty() && frequencies_.size() <= 256);
  std::uint32_t sum = 0;
  for (const std::uint16_t frequency : frequencies_) {
    starts_.push_back(static_cast<std::uint16_t>(std::min(sum, kRansTotal)));
    sum += frequency;
  }
  if (sum != kRansTotal)
    fail(ErrorKind::Io, fmt::format("rANS table: its frequencies sum to {}, not to {}", sum, kRansTotal));
  slots_.reserve(kRansTotal);
  symbols_.reserve(kRansTotal);
  for (std::size_t symbol = 0; symbol < frequencies_.size(); ++symbol) {
    for (std::uint16_t offset = 0; offset < frequencies_[symbol]; ++offset) {
      slots_.push_back({frequencies_[symbol], offset});
      symbols_.push_back(static_cast<std::uint8_t>(symbol));
    }
  }
}

void RansCoder::write_table(std::vector<std::byte>& out) const {
  out.push_back(static_cast<std::byte>(frequencies_.size() - 1));
  for (const std::uint16_t frequency : frequencies_) {
    if (frequency < 128) {
      out.push_back(static_cast<std::byte>(frequency));
    } else {
      out.push_back(static_cast<std::byte>(0x80u | (frequency & 0x7fu)));
      out.push_back(static_cast<std::byte>(frequency >> 7));
    }
  }
}

RansCoder RansCoder::read_table(std::span<const std::byte> bytes, std::size_t& offset) {
  std::size_t at = offset;
  const auto next = [&] {
    if (at >= bytes.size()) fail(ErrorKind::Io, "rANS table: ends too early");
    return static_cast<unsigned>(bytes[at++]);
  };
  std::vector<std::uint16_t> frequencies(next() + 1);
  for (std::uint16_t& frequency : frequencies) {
    const unsigned low = next();
    const unsigned high = low < 128 ? 0 : next();
    if (low >= 128 && (high == 0 || high > kRansTotal >> 7))
      fail(ErrorKind::Io, fmt::format("rANS table: a frequency of {} in two bytes", high << 7 | (low & 0x7fu)));
    frequency = static_cast<std::uint16_t>(low < 128 ? low : high << 7 | (low & 0x7fu));
  }
  RansCoder coder(std::move(frequencies));
  offset = at;
  return coder;
}

void RansCoder::encode(std::span<const std::uint8_t> codes, std::vector<std::byte>& out) const {
  std::uint32_t states[kRansStates];
  std::fill(states, states + kRansStates, kRansLeast);
  std::vector<std::uint16_t> words;  // last first: encoding runs backwards
  words.reserve(codes.size() / 2);
  for (std::size_t index = codes.size(); index-- > 0;) {
    const std::uint8_t code = codes[index];
    const std::uint32_t frequency = code < frequencies_.size() ? frequencies_[code] : 0u;
    if (frequency == 0) fail(ErrorKind::Numeric, fmt::format("rANS model: symbol {} was never counted", code));
    std::uint32_t& state = states[index % kRansStates];
    // One step multiplies the state by 2^12 / frequency; it has to stay below 2^32.
    if (state >= std::uint64_t{frequency} << (32 - kRansBits)) {
      words.push_back(static_cast<std::uint16_t>(state & 0xffffu));
      state >>= 16;
    }
    state = (state / frequency << kRansBits) + state % frequency + starts_[code];
  }
  out.reserve(out.size() + kRansStateBytes + 2 * words.size());
  for (const std::uint32_t state : states) put_number(out, state, 4);
  for (std::size_t index = words.size(); index-- > 0;) put_number(out, words[index], 2);
}

std::size_t RansCoder::decode(std::span<const std::byte> bytes, std::span<std::uint8_t> codes) const {
  if (bytes.size() < kRansStateBytes) fail(ErrorKind::Io, "rANS stream: ends within its states");
  std::uint32_t states[kRansStates];
  for (int lane = 0; lane < kRansStates; ++lane) {
    states[lane] = read_u16(bytes.data() + 4 * lane) | read_u16(bytes.data() + 4 * lane + 2) << 16;
    if (states[lane] < kRansLeast)
      fail(ErrorKind::Io, fmt::format("rANS stream: state {} is {}, below 2^16", lane, states[lane]));
  }
  const Slot* slots = slots_.data();
  const std::uint8_t* symbols = symbols_.data();
  const auto step = [&](std::uint32_t& state) {
    const std::uint32_t slot = state & (kRansTotal - 1);
    state = slots[slot].frequency * (state >> kRansBits) + slots[slot].offset;
    return symbols[slot];
  };

  const std::byte* at = bytes.data() + kRansStateBytes;
  const std::byte* const end = bytes.data() + bytes.size();
  std::size_t done = 0;
  // A word per state and round at most. Which states need one cannot be predicted: no branch may depend on it.
  std::uint32_t a = states[0], b = states[1], c = states[2], d = states[3];
  const auto refill = [&](std::uint32_t& state) {
    const std::uint32_t needs = state < kRansLeast ? ~0u : 0u;
    state ^= (state ^ (state << 16 | read_u16(at))) & needs;
    at += needs & 2u;
  };
  while (codes.size() - done >= kRansStates && end - at >= 2 * kRansStates) {
    std::uint8_t* to = codes.data() + done;
    to[0] = step(a), to[1] = step(b), to[2] = step(c), to[3] = step(d);
    refill(a), refill(b), refill(c), refill(d);
    done += kRansStates;
  }
  states[0] = a, states[1] = b, states[2] = c, states[3] = d;
  for (; done < codes.size(); ++done) {
    std::uint32_t& state = states[done % kRansStates];
    codes[done] = step(state);
    if (state >= kRansLeast) continue;
    if (end - at < 2) fail(ErrorKind::Io, fmt::format("rANS stream: ends at {} of {} symbols", done, codes.size()));
    state = state << 16 | read_u16(at);
    at += 2;
  }
  for (int lane = 0; lane < kRansStates; ++lane) {
    if (states[lane] != kRansLeast)
      fail(ErrorKind::Io, fmt::format("rANS stream: state {} ends at {}, not at 2^16", lane, states[lane]));
  }
  return static_cast<std::size_t>(at - bytes.data());
}

}  // namespace kvq
