#pragma once
// Tables for programs: comma-separated values.

#include <string>

#include <kvq/report/table.h>

namespace kvq {

/// RFC 4180: a header line, cells quoted where they hold a comma, a quote or a line break. Lines end in LF.
std::string to_csv(const Table& table);

}  // namespace kvq
