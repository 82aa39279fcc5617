#include <kvq/vector/entropy_codec.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/coding/entropy.h>
#include <kvq/core/error.h>
#include <kvq/vector/bit_rows.h>

namespace kvq {

namespace {

constexpr std::byte kCodedPage{0}, kPackedPage{1};

/// Whether a table has a code for each of `levels` symbols and no others.
bool covers(const EntropyTable& table, std::size_t levels) {
  const auto all = [&](const auto& numbers) {
    return numbers.size() == levels && std::none_of(numbers.begin(), numbers.end(), [](auto n) { return n == 0; });
  };
  if (const auto* huffman = std::get_if<CanonicalHuffman>(&table)) return all(huffman->lengths());
  return all(std::get<RansCoder>(table).frequencies());
}

}  // namespace

EntropyTable train_entropy_table(const ScalarCodec& scalar, EntropyCoder coder, std::span<const float> sample) {
  const std::size_t channels = static_cast<std::size_t>(scalar.dim());
  const std::int64_t rows = check_rows(sample, scalar.dim());
  std::vector<std::uint64_t> counts(scalar.levels().size(), 1);
  std::vector<std::uint8_t> codes(channels);
  for (std::int64_t row = 0; row < rows; ++row) {
    scalar.quantize(sample.subspan(static_cast<std::size_t>(row) * channels, channels), row, codes);
    for (const std::uint8_t code : codes) ++counts[code];
  }
  if (coder == EntropyCoder::Huffman) return CanonicalHuffman(huffman_lengths(counts));
  return RansCoder(rans_frequencies(counts));
}

EntropyCodec::EntropyCodec(std::shared_ptr<const ScalarCodec> scalar, EntropyTable table, int page)
    : scalar_(std::move(scalar)), table_(std::move(table)), page_(page) {
  KVQ_ASSERT(page_ >= 1);
  if (!covers(table_, scalar_->levels().size()))
    fail(ErrorKind::Io, fmt::format("entropy table: not one of all {} levels", scalar_->levels().size()));
}

class EntropyCodec::Page final : public OpenBlock {
 public:
  explicit Page(const EntropyCodec& codec) : codec_(codec) {}

  void append(std::span<const float> x, std::span<float> decoded) override {
    const ScalarCodec& scalar = *codec_.scalar_;
    const std::size_t rows = static_cast<std::size_t>(check_rows(x, scalar.dim()));
    const std::size_t channels = static_cast<std::size_t>(scalar.dim());
    for (std::size_t row = 0; row < rows; ++row) {
      codes_.resize(codes_.size() + channels);
      const auto codes = std::span<std::uint8_t>(codes_).last(channels);
      const auto values = x.subspan(row * channels, channels);
      scales_.push_back(scalar.quantize(values, static_cast<std::int64_t>(scales_.size()), codes));
      if (!decoded.empty()) scalar.restore(scales_.back(), codes, decoded.subspan(row * channels, channels));
    }
  }
  std::int64_t rows() const override { return static_cast<std::int64_t>(scales_.size()); }

  void close(std::vector<std::byte>& out) const override {
    for (const std::uint16_t scale : scales_) put_half(scale, out);
    const std::size_t mode = out.size();
    out.push_back(kCodedPage);
    std::visit([&](const auto& coder) { coder.encode(codes_, out); }, codec_.table_);
    const int bits = codec_.scalar_->bits();
    if (out.size() - mode - 1 < packed_bytes(codes_.size(), bits)) return;
    out.resize(mode);
    out.push_back(kPackedPage);
    pack_bits(codes_, bits, out);
  }

 private:
  const EntropyCodec& codec_;
  std::vector<std::uint16_t> scales_;
  std::vector<std::uint8_t> codes_;
};

std::unique_ptr<OpenBlock> EntropyCodec::open_block() const { return std::make_unique<Page>(*this); }

void EntropyCodec::encode(std::span<const float> x, std::vector<std::byte>& out) const {
  const std::size_t rows = static_cast<std::size_t>(check_rows(x, dim()));
  const std::size_t channels = static_cast<std::size_t>(dim()), page = static_cast<std::size_t>(page_);
  for (std::size_t first = 0; first < rows; first += page) {
    Page open(*this);
    try {
      open.append(x.subspan(first * channels, std::min(page, rows - first) * channels), {});
    } catch (const VectorOverflow& overflow) {
      throw overflow.moved(static_cast<std::int64_t>(first));
    }
    open.close(out);
  }
}

void EntropyCodec::decode(std::span<const std::byte> bytes, std::span<float> x) const {
  const std::size_t channels = static_cast<std::size_t>(dim()), page = static_cast<std::size_t>(page_);
  KVQ_ASSERT(x.size() % channels == 0);
  const std::size_t rows = x.size() / channels;
  std::vector<std::uint8_t> codes;
  std::size_t at = 0;
  for (std::size_t first = 0; first < rows; first += page) {
    const std::size_t count = std::min(page, rows - first);
    const auto ends = [&] {
      fail(ErrorKind::Io,
           fmt::format("entropy coding: {} bytes end within the page from row {} on", bytes.size(), first));
    };
    if (bytes.size() - at < 2 * count + 1) ends();
    const auto scales = bytes.subspan(at, 2 * count);
    const std::byte mode = bytes[at + 2 * count];
    at += 2 * count + 1;
    codes.resize(count * channels);
    if (mode == kPackedPage) {
      const std::size_t packed = packed_bytes(codes.size(), scalar_->bits());
      if (bytes.size() - at < packed) ends();
      unpack_bits(bytes.subspan(at, packed), scalar_->bits(), codes);
      at += packed;
    } else if (mode == kCodedPage) {
      at += std::visit([&](const auto& coder) { return coder.decode(bytes.subspan(at), codes); }, table_);
    } else {
      fail(ErrorKind::Io, fmt::format("entropy coding: page from row {} on begins with {}, neither 0 nor 1", first,
                                      static_cast<unsigned>(mode)));
    }
    for (std::size_t row = 0; row < count; ++row) {
      scalar_->restore(get_half(scales.subspan(2 * row)),
                       std::span<const std::uint8_t>(codes).subspan(row * channels, channels),
                       x.subspan((first + row) * channels, channels));
    }
  }
  if (at != bytes.size())
    fail(ErrorKind::Io, fmt::format("entropy coding: {} bytes, {} rows take {}", bytes.size(), rows, at));
}

}  // namespace kvq
