#include <kvq/vector/vector_codec.h>

#include <fmt/format.h>

namespace kvq {

namespace {

/// Encodes what each append() brings.
class RowsBlock final : public OpenBlock {
 public:
  explicit RowsBlock(const VectorCodec& codec) : codec_(codec) {}

  void append(std::span<const float> x, std::span<float> decoded) override {
    KVQ_ASSERT(codec_.block_rows() == 1 || rows_ == 0);
    const std::size_t begin = bytes_.size();
    try {
      codec_.encode(x, bytes_);
    } catch (const VectorOverflow& overflow) {
      throw overflow.moved(rows_);
    }
    if (!decoded.empty()) codec_.decode(std::span<const std::byte>(bytes_).subspan(begin), decoded);
    rows_ += static_cast<std::int64_t>(x.size()) / codec_.dim();
  }
  std::int64_t rows() const override { return rows_; }
  void close(std::vector<std::byte>& out) const override { out.insert(out.end(), bytes_.begin(), bytes_.end()); }

 private:
  const VectorCodec& codec_;
  std::vector<std::byte> bytes_;
  std::int64_t rows_ = 0;
};

}  // namespace

VectorOverflow::VectorOverflow(std::int64_t overflow_row, int overflow_channel, float overflow_value,
                               float overflow_limit, std::string what)
    : Error(ErrorKind::Numeric, fmt::format("row {}: {}", overflow_row, what)),
      row(overflow_row),
      channel(overflow_channel),
      value(overflow_value),
      limit(overflow_limit),
      reason(std::move(what)) {}

std::unique_ptr<OpenBlock> VectorCodec::open_block() const { return std::make_unique<RowsBlock>(*this); }

}  // namespace kvq
