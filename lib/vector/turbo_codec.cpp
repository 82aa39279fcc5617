#include <kvq/vector/turbo_codec.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/half.h>
#include <kvq/vector/bit_rows.h>
#include <kvq/vector/orthogonal_loops.h>

namespace kvq {

namespace {

constexpr std::int64_t kRows = 32;  ///< coded together: a rotation's matrix is read once for several of them
constexpr std::int64_t kHalfBytes = 2;

void put_half(std::byte* out, std::uint16_t half) {
  out[0] = static_cast<std::byte>(half & 0xffu);
  out[1] = static_cast<std::byte>(half >> 8);
}
std::uint16_t get_half(const std::byte* in) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(in[0]) | static_cast<unsigned>(in[1]) << 8);
}

std::span<std::uint8_t> row_of(std::vector<std::uint8_t>& codes, std::int64_t row, int n) {
  return {codes.data() + row * n, static_cast<std::size_t>(n)};
}
std::int64_t code_bytes_of(int count, int bits) {
  return static_cast<std::int64_t>(packed_bytes(static_cast<std::size_t>(count), bits));
}

bool is_length(std::uint16_t half) { return half < 0x7c00u; }

[[noreturn]] void overflow(std::int64_t row, int channel, float value, float limit) {
  throw VectorOverflow(row, channel, value, limit,
                       fmt::format("the norm does not fit fp16 with its exponent; channel {} has {}, norms up to "
                                   "{:.6g} fit",
                                   channel, value, limit));
}

}  // namespace

struct TurboCodec::Scratch {
  std::vector<float> y, z, rounded;
  std::vector<std::uint8_t> codes, signs;
};

TurboCodec::TurboCodec(std::shared_ptr<const TurboTables> tables, std::vector<std::int32_t> outliers, int exponent)
    : tables_(std::move(tables)),
      loops_(&orthogonal_loops()),
      dim_(tables_->dim()),
      exponent_(exponent),
      row_bytes_(tables_->row_bytes()) {
  KVQ_ASSERT(exponent >= -126 && exponent <= 127);
  const std::vector<TurboPart>& parts = tables_->parts;
  const std::size_t wanted = parts.size() == 2 ? static_cast<std::size_t>(parts[1].dim()) : 0;
  if (parts.empty() || parts.size() > 2 || outliers.size() != wanted)
    fail(ErrorKind::Mismatch, fmt::format("turbo has {} parts and {} outlier channels", parts.size(), outliers.size()));
  std::vector<std::int32_t> rest;
  std::size_t at = 0;
  for (std::int32_t channel = 0; channel < dim_ && wanted > 0; ++channel) {
    if (at < wanted && outliers[at] == channel) {
      ++at;
    } else {
      rest.push_back(channel);
    }
  }
  if (at != wanted) fail(ErrorKind::Mismatch, fmt::format("outlier channels do not ascend within {} channels", dim_));
  std::int64_t offset = 0;
  for (const TurboPart& part : parts) {
    const std::size_t levels = part.code_bits() == 0 ? 0 : std::size_t{1} << part.code_bits();
    if (part.bits < 1 || part.bits > 8 || part.levels.size() != levels ||
        !std::is_sorted(part.levels.begin(), part.levels.end()) || (part.sketch && part.sketch->dim() != part.dim())) {
      fail(ErrorKind::Mismatch, fmt::format("turbo has {} levels for {} bits, or a sketch of another size",
                                            part.levels.size(), part.code_bits()));
    }
    Placed placed{&part, {}, {}, offset};
    if (wanted > 0) placed.channels = &part == &parts[0] ? rest : outliers;
    for (std::size_t level = 1; level < levels; ++level)
      placed.borders.push_back(0.5f * part.levels[level - 1] + 0.5f * part.levels[level]);
    offset += kHalfBytes * part.norms() + part.code_bytes();
    parts_.push_back(std::move(placed));
  }
}

/// A part's channels, scaled by 2^-exponent.
void TurboCodec::gather(const Placed& placed, std::span<const float> x, std::int64_t rows,
                        std::vector<float>& y) const {
  const float unit = std::ldexp(1.0f, -exponent_);
  const auto n = static_cast<std::size_t>(placed.part->dim()), width = static_cast<std::size_t>(dim_);
  y.resize(static_cast<std::size_t>(rows) * n);
  if (placed.channels.empty()) {
    for (std::size_t index = 0; index < y.size(); ++index) y[index] = x[index] * unit;
    return;
  }
  for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
    for (std::size_t index = 0; index < n; ++index)
      y[row * n + index] = x[row * width + static_cast<std::size_t>(placed.channels[index])] * unit;
  }
}

void TurboCodec::encode_part(const Placed& placed, std::span<const float> x, std::int64_t first, std::int64_t rows,
                             std::byte* out, Scratch& scratch) const {
  const TurboPart& part = *placed.part;
  const int n = part.dim(), code_bits = part.code_bits();
  const auto size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(n);
  std::vector<float>&y = scratch.y, &z = scratch.z, &rounded = scratch.rounded;
  gather(placed, x, rows, y);
  z.resize(size);
  rounded.assign(size, 0.0f);
  scratch.codes.resize(size);
  for (std::int64_t row = 0; row < rows; ++row) {
    float* own = y.data() + row * n;
    const std::uint16_t half = float_to_half(std::sqrt(loops_->dot(own, own, n)));
    if (!is_length(half)) {
      const auto begin = x.begin() + row * dim_, end = begin + dim_;
      const auto largest = std::max_element(begin, end, [](float a, float b) { return std::abs(a) < std::abs(b); });
      overflow(first + row, static_cast<int>(largest - begin), *largest, std::ldexp(kHalfMax, exponent_));
    }
    put_half(out + row * row_bytes_, half);
    const float inverse = half == 0 ? 0.0f : 1.0f / half_to_float(half);
    for (int channel = 0; channel < n; ++channel) own[channel] *= inverse;
  }
  part.rotation.forward(y, z);
  if (code_bits > 0) {
    loops_->assign_codes(z.data(), static_cast<int>(size), placed.borders.data(), code_bits, scratch.codes.data());
    for (std::int64_t row = 0; row < rows; ++row)
      pack_bits(row_of(scratch.codes, row, n), code_bits, out + row * row_bytes_ + kHalfBytes * part.norms());
    if (part.sketch || tables_->norm != NormRule::Exact)
      loops_->look_up(scratch.codes.data(), static_cast<int>(size), part.levels.data(), rounded.data());
  }
  for (std::int64_t row = 0; row < rows && tables_->norm != NormRule::Exact; ++row) {
    const float *own = z.data() + row * n, *near = rounded.data() + row * n;
    const float length = half_to_float(get_half(out + row * row_bytes_)), product = loops_->dot(own, near, n);
    const float ratio =
        tables_->norm == NormRule::Fit ? product / loops_->dot(near, near, n) : loops_->dot(own, own, n) / product;
    if (!(product > 0.0f)) continue;  // a row of zeros
    put_half(out + row * row_bytes_, std::min<std::uint16_t>(float_to_half(length * ratio), 0x7bffu));
  }
  if (!part.sketch) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    float *own = z.data() + row * n, *near = rounded.data() + row * n;
    for (int channel = 0; channel < n; ++channel) own[channel] -= near[channel];
    if (part.stores_residual())
      put_half(out + row * row_bytes_ + kHalfBytes, float_to_half(std::sqrt(loops_->dot(own, own, n))));
  }
  scratch.signs.resize(size);
  part.sketch->signs(z, scratch.signs);
  const std::int64_t behind = kHalfBytes * part.norms() + code_bytes_of(n, code_bits);
  for (std::int64_t row = 0; row < rows; ++row)
    pack_bits(row_of(scratch.signs, row, n), 1, out + row * row_bytes_ + behind);
}

void TurboCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  KVQ_ASSERT(x.size() % static_cast<std::size_t>(dim_) == 0);
  const auto rows = static_cast<std::int64_t>(x.size()) / dim_;
  const std::size_t before = out.size();
  out.resize(before + static_cast<std::size_t>(rows * row_bytes_));
  Scratch scratch;
  for (std::int64_t first = 0; first < rows; first += kRows) {
    const std::int64_t count = std::min(kRows, rows - first);
    const auto part_of_x = x.subspan(static_cast<std::size_t>(first * dim_), static_cast<std::size_t>(count * dim_));
    for (const Placed& placed : parts_)
      encode_part(placed, part_of_x, first, count,
                  out.data() + before + static_cast<std::size_t>(first * row_bytes_) + placed.offset, scratch);
  }
}

void TurboCodec::decode_part(const Placed& placed, const std::byte* in, std::int64_t first, std::int64_t rows,
                             std::span<float> x, Scratch& scratch) const {
  const TurboPart& part = *placed.part;
  const int n = part.dim(), code_bits = part.code_bits();
  const auto size = static_cast<std::size_t>(rows) * static_cast<std::size_t>(n);
  std::vector<float>&z = scratch.z, &y = scratch.y, &direction = scratch.rounded;
  z.assign(size, 0.0f);
  y.resize(size);
  scratch.codes.resize(size);
  const std::int64_t codes_at = kHalfBytes * part.norms(), signs_at = codes_at + code_bytes_of(n, code_bits);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::byte* bytes = in + row * row_bytes_;
    const bool lengths =
        is_length(get_half(bytes)) && (!part.stores_residual() || is_length(get_half(bytes + kHalfBytes)));
    if (!lengths || (code_bits > 0 && !unpack_bits(bytes + codes_at, code_bits, row_of(scratch.codes, row, n))))
      fail(ErrorKind::Io, fmt::format("row {} of turbo: bytes that no encoder writes", first + row));
  }
  if (code_bits > 0) loops_->look_up(scratch.codes.data(), static_cast<int>(size), part.levels.data(), z.data());
  if (part.sketch) {
    scratch.signs.resize(size);
    direction.resize(size);
    for (std::int64_t row = 0; row < rows; ++row) {
      if (!unpack_bits(in + row * row_bytes_ + signs_at, 1, row_of(scratch.signs, row, n)))
        fail(ErrorKind::Io, fmt::format("row {} of turbo: bytes that no encoder writes", first + row));
    }
    part.sketch->estimate(scratch.signs, direction);
    for (std::int64_t row = 0; row < rows; ++row) {
      const float residual =
          part.stores_residual() ? half_to_float(get_half(in + row * row_bytes_ + kHalfBytes)) : 1.0f;
      float* own = z.data() + row * n;
      for (int channel = 0; channel < n; ++channel)
        own[channel] += residual * direction[static_cast<std::size_t>(row * n + channel)];
    }
  }
  part.rotation.inverse(z, y);
  const float unit = std::ldexp(1.0f, exponent_);
  for (std::int64_t row = 0; row < rows; ++row) {
    const float length = half_to_float(get_half(in + row * row_bytes_)) * unit;
    const float* own = y.data() + row * n;
    float* to = x.data() + row * dim_;
    if (placed.channels.empty()) {
      for (int channel = 0; channel < n; ++channel) to[channel] = own[channel] * length;
    } else {
      for (int channel = 0; channel < n; ++channel)
        to[placed.channels[static_cast<std::size_t>(channel)]] = own[channel] * length;
    }
  }
}

void TurboCodec::decode(std::span<const std::byte> bytes, std::span<float> x) const {
  KVQ_ASSERT(x.size() % static_cast<std::size_t>(dim_) == 0);
  const auto rows = static_cast<std::int64_t>(x.size()) / dim_;
  if (static_cast<std::int64_t>(bytes.size()) != rows * row_bytes_) {
    fail(ErrorKind::Io, fmt::format("turbo: {} bytes for {} rows of {}", bytes.size(), rows, row_bytes_));
  }
  Scratch scratch;
  for (std::int64_t first = 0; first < rows; first += kRows) {
    const std::int64_t count = std::min(kRows, rows - first);
    const auto part_of_x = x.subspan(static_cast<std::size_t>(first * dim_), static_cast<std::size_t>(count * dim_));
    for (const Placed& placed : parts_)
      decode_part(placed, bytes.data() + first * row_bytes_ + placed.offset, first, count, part_of_x, scratch);
  }
}

void TurboCodec::turn(std::span<float> x,
                      void (OrthogonalTransform::*apply)(std::span<const float>, std::span<float>) const) const {
  const auto width = static_cast<std::size_t>(dim_);
  std::vector<float> before, after;
  for (const Placed& placed : parts_) {
    const auto n = static_cast<std::size_t>(placed.part->dim());
    before.resize(n), after.resize(n);
    const auto at = [&placed](std::size_t index) {
      return placed.channels.empty() ? index : static_cast<std::size_t>(placed.channels[index]);
    };
    for (std::size_t row = 0; row < x.size(); row += width) {
      for (std::size_t index = 0; index < n; ++index) before[index] = x[row + at(index)];
      (placed.part->rotation.*apply)(before, after);
      for (std::size_t index = 0; index < n; ++index) x[row + at(index)] = after[index];
    }
  }
}

}  // namespace kvq
