#include <kvq/cache/page_writer.h>

#include <algorithm>

#include <kvq/cache/outlier_list.h>
#include <kvq/cache/page_bytes.h>
#include <kvq/core/error.h>

namespace kvq {

void PageWriter::begin() { OutlierList(shape_, parts_, page_).begin(); }

void PageWriter::write(int first_slot, const EncodedTokens& tokens) {
  const int count = static_cast<int>(tokens.tokens);
  KVQ_ASSERT(first_slot >= 0 && first_slot + count <= layout::kPageTokens);
  rows_.write(page_ + parts_.codes, first_slot, count, tokens.codes.data());
  write_ranges(first_slot, tokens);
}

void PageWriter::write_ranges(int first_slot, const EncodedTokens& tokens) {
  if (tokens.token_range.empty()) return;
  const bool whole_zeros = shape_.zero_bits == 8 * layout::kHalfBytes;
  const std::int64_t first =
      std::int64_t{shape_.token_ranges ? first_slot : first_slot / shape_.group_tokens} * shape_.ranges;
  std::memcpy(page_ + parts_.ranges + first * (whole_zeros ? 2 : 1) * layout::kHalfBytes, tokens.token_range.data(),
              tokens.token_range.size() * sizeof(std::uint16_t));
  std::int64_t bit = std::int64_t{shape_.range_sets()} * shape_.ranges * 8 * layout::kHalfBytes;
  bit += first * shape_.zero_bits;
  for (const std::uint8_t point : tokens.zero_point) {
    store_bits(page_ + parts_.ranges, bit, shape_.zero_bits, point);
    bit += shape_.zero_bits;
  }
}

void PageWriter::crop_ranges(int slots) {
  const auto sets = static_cast<std::int64_t>(shape_.range_sets());
  if (sets == 0) return;
  const bool whole_zeros = shape_.zero_bits == 8 * layout::kHalfBytes;
  const std::int64_t first = (shape_.token_ranges ? slots : layout::div_up(slots, shape_.group_tokens)) * shape_.ranges;
  const std::int64_t size = (whole_zeros ? 2 : 1) * layout::kHalfBytes, end = sets * shape_.ranges;
  std::fill(page_ + parts_.ranges + first * size, page_ + parts_.ranges + end * size, std::uint8_t{0});
  for (std::int64_t range = first; range < end && !whole_zeros; ++range)
    store_bits(page_ + parts_.ranges, end * size * 8 + range * shape_.zero_bits, shape_.zero_bits, 0);
}

void PageWriter::write_outliers(int first_slot, const EncodedTokens& tokens, BlockPool& overflow) {
  if (!shape_.has_outliers() || tokens.outliers() == 0) return;
  OutlierList list(shape_, parts_, page_);
  std::vector<OutlierEntry> entries = list.read(overflow);
  for (std::int64_t token = 0; token < tokens.tokens; ++token) {
    for (std::size_t entry = tokens.outlier_begin[token]; entry < tokens.outlier_begin[token + 1]; ++entry) {
      entries.push_back({static_cast<std::int32_t>(tokens.outlier_channel[entry]),
                         static_cast<std::int32_t>(first_slot + token), tokens.outlier_value[entry]});
    }
  }
  list.write(std::move(entries), overflow);
}

void PageWriter::crop(int slots, BlockPool& overflow) {
  rows_.crop(page_ + parts_.codes, slots);
  crop_ranges(slots);
  crop_outliers(slots, overflow);
}

void PageWriter::crop_outliers(int slots, BlockPool& overflow) {
  if (!shape_.has_outliers()) return;
  OutlierList list(shape_, parts_, page_);
  std::vector<OutlierEntry> entries = list.read(overflow);
  std::erase_if(entries, [slots](const OutlierEntry& entry) { return entry.token >= slots; });
  list.write(std::move(entries), overflow);
}

}  // namespace kvq
