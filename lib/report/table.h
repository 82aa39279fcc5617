#pragma once
// Tables for people: aligned text for a terminal, Markdown for files.

#include <string>
#include <vector>

namespace kvq {

struct Table {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;  ///< each as long as `header`
};

/// Columns padded with spaces; the first is left-aligned, the others right-aligned. Widths count code points.
std::string to_text(const Table& table);
std::string to_markdown(const Table& table);

}  // namespace kvq
