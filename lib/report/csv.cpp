#include <kvq/report/csv.h>

namespace kvq {

namespace {

std::string quoted(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) return cell;
  std::string text = "\"";
  for (const char byte : cell) text += byte == '"' ? "\"\"" : std::string(1, byte);
  return text + '"';
}

std::string line(const std::vector<std::string>& cells) {
  std::string text;
  for (const std::string& cell : cells) {
    if (&cell != &cells.front()) text += ',';
    text += quoted(cell);
  }
  return text + '\n';
}

}  // namespace

std::string to_csv(const Table& table) {
  std::string text = line(table.header);
  for (const auto& row : table.rows) text += line(row);
  return text;
}

}  // namespace kvq
