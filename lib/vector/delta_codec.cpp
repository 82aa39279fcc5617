#include <kvq/vector/delta_codec.h>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/vector/scalar_codec.h>

namespace kvq {

namespace {

double row_norm(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum);
}

}  // namespace

DeltaCodec::DeltaCodec(std::shared_ptr<const VectorCodec> deltas, std::shared_ptr<const VectorCodec> anchors,
                       DeltaOptions options)
    : deltas_(std::move(deltas)), anchors_(std::move(anchors)), options_(options) {
  KVQ_ASSERT(deltas_->dim() == anchors_->dim() && deltas_->block_rows() == 1 && anchors_->block_rows() == 1);
  KVQ_ASSERT(options_.anchor >= 1 && options_.threshold >= 0);
  delta_bytes_ = zero_block_bytes(*deltas_, 1);
  anchor_bytes_ = zero_block_bytes(*anchors_, 1);
}

void DeltaCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const { encode_rows(x, out, nullptr); }

std::vector<float> DeltaCodec::deltas_of(std::span<const float> x) const {
  std::vector<std::byte> bytes;
  std::vector<float> kept;
  encode_rows(x, bytes, &kept);
  return kept;
}

void DeltaCodec::encode_rows(std::span<const float> x, std::vector<std::byte>& out, std::vector<float>* kept) const {
  const std::int64_t rows = check_rows(x, dim());
  const std::size_t channels = static_cast<std::size_t>(dim());
  std::vector<float> delta(channels), decoded(channels), predecessor(channels);
  std::size_t flags = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto values = x.subspan(static_cast<std::size_t>(row) * channels, channels);
    const std::int64_t in_block = row % options_.anchor;
    if (in_block == 0) {
      flags = out.size();
      out.resize(flags + static_cast<std::size_t>((std::min<std::int64_t>(options_.anchor, rows - row) + 7) / 8));
    }
    bool anchor = in_block == 0;
    if (!anchor) {
      for (std::size_t channel = 0; channel < channels; ++channel)
        delta[channel] = values[channel] - predecessor[channel];
      anchor = !(row_norm(delta) <= static_cast<double>(options_.threshold) * row_norm(values));
    }
    const std::size_t begin = out.size();
    try {
      (anchor ? anchors_ : deltas_)->encode(anchor ? values : std::span<const float>(delta), out);
    } catch (const Error& error) {
      fail(error.kind(), fmt::format("delta coding, row {}, coded alone: {}", row, error.what()));
    }
    const std::size_t expected = anchor ? anchor_bytes_ : delta_bytes_;
    KVQ_ASSERT(out.size() - begin == expected);
    (anchor ? anchors_ : deltas_)->decode(std::span<const std::byte>(out).subspan(begin), decoded);
    if (anchor) {
      predecessor = decoded;
      out[flags + static_cast<std::size_t>(in_block / 8)] |= static_cast<std::byte>(1u << (in_block % 8));
    } else {
      for (std::size_t channel = 0; channel < channels; ++channel) predecessor[channel] += decoded[channel];
      if (kept) kept->insert(kept->end(), delta.begin(), delta.end());
    }
  }
}

void DeltaCodec::decode(std::span<const std::byte> bytes, std::span<float> x) const {
  const std::size_t channels = static_cast<std::size_t>(dim());
  KVQ_ASSERT(x.size() % channels == 0);
  const std::size_t rows = x.size() / channels, block = static_cast<std::size_t>(options_.anchor);
  std::size_t at = 0;
  const auto take = [&](std::size_t count) {
    if (count > bytes.size() - at)
      fail(ErrorKind::Io, fmt::format("delta coding: {} bytes end too early", bytes.size()));
    at += count;
    return bytes.subspan(at - count, count);
  };
  std::span<const std::byte> flags;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t in_block = row % block;
    if (in_block == 0) {
      const std::size_t count = std::min(block, rows - row);
      flags = take((count + 7) / 8);
      const bool first = (flags[0] & std::byte{1}) != std::byte{0};
      const unsigned beyond = count % 8 == 0 ? 0u : static_cast<unsigned>(flags.back()) >> (count % 8);
      if (!first || beyond != 0)
        fail(ErrorKind::Io, fmt::format("delta coding, block at row {}: {}", row,
                                        first ? "the padding behind its flags is not zero" : "no anchor at its start"));
    }
    const bool anchor = (static_cast<unsigned>(flags[in_block / 8]) >> (in_block % 8) & 1u) != 0;
    const auto values = x.subspan(row * channels, channels);
    (anchor ? anchors_ : deltas_)->decode(take(anchor ? anchor_bytes_ : delta_bytes_), values);
    if (anchor) continue;
    for (std::size_t channel = 0; channel < channels; ++channel) values[channel] += x[(row - 1) * channels + channel];
  }
  if (at != bytes.size())
    fail(ErrorKind::Io, fmt::format("delta coding: {} bytes, {} rows take {}", bytes.size(), rows, at));
}

}  // namespace kvq
