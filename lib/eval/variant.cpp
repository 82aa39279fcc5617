#include <kvq/eval/variant.h>

#include <fmt/format.h>

#include <kvq/model/rope.h>
#include <kvq/quant/footprint.h>

namespace kvq {

namespace {

/// The unquantized cache, counted as fp16.
class ExactCache final : public KvCache {
 public:
  explicit ExactCache(const ModelConfig& config) : shape_(config.kv), exact_(config.kv, config.rope) {}
  at::Tensor attend(const AttentionInput& input) override {
    if (input.layer == 0) tokens_ += input.key.size(0);
    return exact_.attend(input);
  }
  void reset() override {
    exact_.reset();
    tokens_ = 0;
  }
  std::int64_t tokens() const override { return tokens_; }
  std::int64_t bytes() const override { return fp16_bytes(shape_, tokens_); }

 private:
  KvShape shape_;
  ExactAttention exact_;
  std::int64_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<KvCache> cache_of(const NamedQuantizer& row, const ModelConfig& config, int threads) {
  if (!row.quantizer) return std::make_unique<ExactCache>(config);
  check_belongs(*row.quantizer, config, fmt::format("quantizer '{}'", row.name));
  return make_cache(row.cache, row.quantizer, threads, row.parts);
}

}  // namespace kvq
