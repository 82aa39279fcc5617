#pragma once
// Pages for people: one file, no network, no scripts. Light and dark follow the reader's system; printed in light.

#include <string>

#include <kvq/report/table.h>

namespace kvq {

/// Text as it may stand in an element or a quoted attribute. Control characters that HTML forbids and bytes that are no
/// UTF-8 become U+FFFD.
std::string escape_html(const std::string& text);

/// First column: row headings. Wide tables scroll by themselves, not the page. `caption` may be empty.
std::string html_table(const Table& table, const std::string& caption);

/// A whole document around `body`, with the style that tables and charts (svg.h) rely on.
std::string html_page(const std::string& title, const std::string& body);

}  // namespace kvq
