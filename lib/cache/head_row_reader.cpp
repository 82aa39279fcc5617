#include <kvq/cache/head_row_reader.h>

#include <algorithm>

#include <kvq/cache/page_bytes.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/block_formats.h>
#include <kvq/quant/recipe_traits.h>
#include <kvq/quant/scaled_half.h>
#include <kvq/quant/vector_side.h>

namespace kvq {

using layout::kPageTokens;

HeadRowReader::HeadRowReader(const SideQuantizer& quantizer, const PageLoops& loops, bool rotated)
    : coder_(quantizer),
      loops_(&loops),
      kv_heads_(quantizer.kv_heads),
      head_dim_(quantizer.head_dim),
      rotated_(rotated) {
  if (is_block_format(quantizer.recipe.codebook)) add_levels(quantizer);
  if (quantizer.recipe.codebook == CodebookKind::Turbo) add_turbo(quantizer);
}

void HeadRowReader::add_table(const std::vector<float>& levels) {
  for (std::size_t entry = 0; entry < std::max<std::size_t>(levels.size(), 16); ++entry)
    levels_.push_back(levels[entry % levels.size()]);
}

void HeadRowReader::add_levels(const SideQuantizer& quantizer) {
  add_table(block_levels(quantizer.recipe.codebook));
  int row = 0, scale = 0;
  std::int64_t offset = 0;
  for (const RowRun& run : coder_.rows().runs) {
    levels_runs_.push_back({row, run.count, run.bits, offset, 0, run.scales > 0 ? scale : -1});
    row += run.count, scale += run.scales;
    offset += std::int64_t{run.count} * run.bits * kPageTokens / 8;
  }
}

void HeadRowReader::add_turbo(const SideQuantizer& quantizer) {
  for (const auto& codec : head_codecs(quantizer)) turbo_.push_back(std::dynamic_pointer_cast<const TurboCodec>(codec));
  if (turbo_.front()->has_sketch()) return turbo_.clear();
  scale_unit_ = power_of_two(quantizer.exponent);
  int row = 0, scale = 0;
  std::int64_t offset = 0;
  for (const TurboCodec::Placed& placed : turbo_.front()->parts()) {
    const TurboPart& part = *placed.part;
    levels_runs_.push_back({row, part.dim(), part.bits, offset, levels_.size(), scale++});
    add_table(part.levels);
    row += part.dim();
    offset += std::int64_t{part.dim()} * part.bits * kPageTokens / 8;
  }
}

void HeadRowReader::open_scales(const std::uint8_t* ranges, std::vector<float>& scales,
                                std::vector<float>& scratch) const {
  const int of_token = kv_heads_ * scales_of_head(), count = of_token * kPageTokens;
  scales.resize(static_cast<std::size_t>(count)), scratch.resize(scales.size());
  loops_->halves_to_floats(ranges, count, scale_unit_, scratch.data());
  for (int index = 0; index < count; ++index)  // the token last
    scales[static_cast<std::size_t>(index % of_token * kPageTokens + index / of_token)] =
        scratch[static_cast<std::size_t>(index)];
}

void HeadRowReader::decode(const std::uint8_t* codes, const std::uint8_t* ranges, const float* scales, int kv_head,
                           float* out, std::vector<float>& scratch) const {
  if (levels_runs_.empty()) return decode_by_codec(codes, ranges, kv_head, out);
  static const std::vector<float> ones(kPageTokens, 1.0f), zeros(kPageTokens, 0.0f);
  for (const Levels& run : levels_runs_) {
    const float* scale =
        run.scale < 0 ? ones.data() : scales + std::ptrdiff_t{kv_head * scales_of_head() + run.scale} * kPageTokens;
    loops_->decode_tokens(codes + run.offset, run.rows, run.bits, levels_.data() + run.table, zeros.data(), scale,
                          out + run.first_row * kPageTokens);
  }
  if (turbo_.empty()) return;
  const std::vector<TurboCodec::Placed>& parts = turbo_[static_cast<std::size_t>(kv_head)]->parts();
  float* block = out;
  for (const TurboCodec::Placed& placed : parts) {
    if (!rotated_) placed.part->rotation.inverse_columns(block, kPageTokens, scratch);
    block += placed.part->dim() * kPageTokens;
  }
  if (parts.size() == 1) return;
  scratch.assign(out, out + head_dim_ * kPageTokens);
  const float* row = scratch.data();
  for (const TurboCodec::Placed& placed : parts) {
    for (const std::int32_t channel : placed.channels) {
      std::copy_n(row, kPageTokens, out + channel * kPageTokens);
      row += kPageTokens;
    }
  }
}

void HeadRowReader::decode_by_codec(const std::uint8_t* codes, const std::uint8_t* ranges, int kv_head,
                                    float* out) const {
  const HeadRows& rows = coder_.rows();
  const std::int64_t count = rows.rows(), scales = rows.scales();
  std::vector<std::uint8_t> of_tokens(static_cast<std::size_t>(kPageTokens * count));
  std::int64_t row = 0, bit = 0;
  for (const RowRun& run : rows.runs) {
    for (int index = 0; index < run.count; ++index, ++row) {
      for (int slot = 0; slot < kPageTokens; ++slot, bit += run.bits)
        of_tokens[static_cast<std::size_t>(slot * count + row)] =
            static_cast<std::uint8_t>(load_bits(codes, bit, run.bits));
    }
  }
  std::vector<std::uint16_t> halves;
  for (std::int64_t slot = 0; slot < kPageTokens; ++slot) {
    for (std::int64_t scale = 0; scale < scales; ++scale)
      halves.push_back(load_number<std::uint16_t>(ranges + 2 * ((slot * kv_heads_ + kv_head) * scales + scale)));
  }
  std::vector<float> x(static_cast<std::size_t>(head_dim_ * kPageTokens));
  coder_.decode(kv_head, of_tokens, halves, x);
  for (int channel = 0; channel < head_dim_; ++channel) {
    for (int slot = 0; slot < kPageTokens; ++slot)
      out[channel * kPageTokens + slot] = x[static_cast<std::size_t>(slot * head_dim_ + channel)];
  }
}

}  // namespace kvq
