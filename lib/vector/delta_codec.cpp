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

/// The newest block: what it holds so far, and the last row as it decodes.
class DeltaCodec::Block final : public OpenBlock {
 public:
  explicit Block(const DeltaCodec& codec)
      : codec_(codec),
        delta_(static_cast<std::size_t>(codec.dim())),
        decoded_(delta_.size()),
        predecessor_(delta_.size()) {}

  void append(std::span<const float> x, std::span<float> decoded) override {
    const std::int64_t rows = check_rows(x, codec_.dim());
    const std::size_t channels = delta_.size();
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      append_row(x.subspan(row * channels, channels));
      if (!decoded.empty()) std::copy(predecessor_.begin(), predecessor_.end(), decoded.begin() + row * channels);
    }
  }

  /// False: the row became an anchor, and delta() says nothing.
  bool append_row(std::span<const float> values) {
    const std::size_t channels = delta_.size();
    bool anchor = rows_ == 0;
    if (!anchor) {
      for (std::size_t channel = 0; channel < channels; ++channel)
        delta_[channel] = values[channel] - predecessor_[channel];
      anchor = !(row_norm(delta_) <= static_cast<double>(codec_.options_.threshold) * row_norm(values));
    }
    const VectorCodec& rows = anchor ? *codec_.anchors_ : *codec_.deltas_;
    const std::size_t begin = bytes_.size();
    try {
      rows.encode(anchor ? values : std::span<const float>(delta_), bytes_);
    } catch (const VectorOverflow& overflow) {
      throw overflow.moved(rows_);
    }
    KVQ_ASSERT(bytes_.size() - begin == (anchor ? codec_.anchor_bytes_ : codec_.delta_bytes_));
    rows.decode(std::span<const std::byte>(bytes_).subspan(begin), decoded_);
    if (rows_ % 8 == 0) flags_.push_back(std::byte{0});
    if (anchor) {
      predecessor_ = decoded_;
      flags_.back() |= static_cast<std::byte>(1u << (rows_ % 8));
    } else {
      for (std::size_t channel = 0; channel < channels; ++channel) predecessor_[channel] += decoded_[channel];
    }
    ++rows_;
    return !anchor;
  }
  const std::vector<float>& delta() const { return delta_; }

  std::int64_t rows() const override { return rows_; }
  void close(std::vector<std::byte>& out) const override {
    out.insert(out.end(), flags_.begin(), flags_.end());
    out.insert(out.end(), bytes_.begin(), bytes_.end());
  }

 private:
  const DeltaCodec& codec_;
  std::vector<float> delta_, decoded_, predecessor_;
  std::vector<std::byte> flags_, bytes_;
  std::int64_t rows_ = 0;
};

template <typename Visit>
void DeltaCodec::for_each_block(std::span<const float> x, Visit visit) const {
  const std::int64_t rows = check_rows(x, dim()), channels = dim();
  for (std::int64_t first = 0; first < rows; first += options_.anchor) {
    const std::int64_t count = std::min<std::int64_t>(options_.anchor, rows - first);
    Block block(*this);
    try {
      visit(block, x.subspan(static_cast<std::size_t>(first * channels), static_cast<std::size_t>(count * channels)));
    } catch (const VectorOverflow& overflow) {
      throw overflow.moved(first);
    }
  }
}

std::unique_ptr<OpenBlock> DeltaCodec::open_block() const { return std::make_unique<Block>(*this); }

void DeltaCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  for_each_block(x, [&](Block& block, std::span<const float> rows) {
    block.append(rows, {});
    block.close(out);
  });
}

std::vector<float> DeltaCodec::deltas_of(std::span<const float> x) const {
  std::vector<float> kept;
  const std::size_t channels = static_cast<std::size_t>(dim());
  for_each_block(x, [&](Block& block, std::span<const float> rows) {
    for (std::size_t at = 0; at < rows.size(); at += channels) {
      if (block.append_row(rows.subspan(at, channels)))
        kept.insert(kept.end(), block.delta().begin(), block.delta().end());
    }
  });
  return kept;
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
