#pragma once
// Puts encoded tokens into pages and takes tokens out of them again (kernels/layout/page.h says what lies where). A
// slot is the place of a token in its page, 0 to 63.

#include <cstdint>

#include <kvq/cache/block_pool.h>
#include <kvq/cache/code_rows.h>
#include <kvq/kernels/layout/page.h>
#include <kvq/quant/encoder.h>

namespace kvq {

/// One side of a page. Slots are written in order, each once.
class PageWriter {
 public:
  PageWriter(const layout::SideShape& shape, const layout::SideParts& parts, const CodeRows& rows, std::uint8_t* page)
      : shape_(shape), parts_(parts), rows_(rows), page_(page) {}

  /// Puts the page of zeros that a pool gives into its first state.
  void begin();

  /// Codes and ranges of `tokens`, into slots first_slot …
  void write(int first_slot, const EncodedTokens& tokens);
  /// Their outliers; may take overflow blocks, so it is not for several threads at once.
  void write_outliers(int first_slot, const EncodedTokens& tokens, BlockPool& overflow);

  /// Leaves the page as it would be if only `slots` tokens had been written; overflow blocks go back.
  void crop(int slots, BlockPool& overflow);

 private:
  void write_ranges(int first_slot, const EncodedTokens& tokens);
  void crop_ranges(int slots);
  void crop_outliers(int slots, BlockPool& overflow);

  const layout::SideShape& shape_;
  const layout::SideParts& parts_;
  const CodeRows& rows_;
  std::uint8_t* page_;
};

}  // namespace kvq
