#include <kvq/report/table.h>

#include <algorithm>

namespace kvq {

namespace {

std::size_t code_points(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

std::string padded(const std::string& text, std::size_t width, bool left) {
  const std::string space(width - code_points(text), ' ');
  return left ? text + space : space + text;
}

/// In Markdown a bar would end the cell.
std::string escape_bars(const std::string& text) {
  std::string escaped;
  for (char byte : text) escaped += byte == '|' ? "\\|" : std::string(1, byte);
  return escaped;
}

std::vector<std::size_t> column_widths(const Table& table) {
  std::vector<std::size_t> widths;
  for (const std::string& cell : table.header) widths.push_back(code_points(cell));
  for (const auto& row : table.rows) {
    for (std::size_t column = 0; column < widths.size(); ++column) {
      widths[column] = std::max(widths[column], code_points(row.at(column)));
    }
  }
  return widths;
}

std::string line(const std::vector<std::string>& cells, const std::vector<std::size_t>& widths,
                 const std::string& before, const std::string& between, const std::string& after) {
  std::string text = before;
  for (std::size_t column = 0; column < widths.size(); ++column) {
    if (column > 0) text += between;
    text += padded(cells[column], widths[column], column == 0);
  }
  text += after;
  text.erase(text.find_last_not_of(' ') + 1);
  return text + '\n';
}

}  // namespace

std::string to_text(const Table& table) {
  const auto widths = column_widths(table);
  std::string text = line(table.header, widths, "", "  ", "");
  std::size_t total = 0;
  for (std::size_t width : widths) total += width + 2;
  text += std::string(total - 2, '-') + '\n';
  for (const auto& row : table.rows) text += line(row, widths, "", "  ", "");
  return text;
}

std::string to_markdown(const Table& original) {
  Table table = original;
  for (std::string& cell : table.header) cell = escape_bars(cell);
  for (auto& row : table.rows) {
    for (std::string& cell : row) cell = escape_bars(cell);
  }
  std::vector<std::size_t> widths = column_widths(table);
  std::vector<std::string> rule;
  for (std::size_t column = 0; column < widths.size(); ++column) {
    widths[column] = std::max<std::size_t>(widths[column], column == 0 ? 1 : 2);  // room for "-" and "-:"
    rule.push_back(column == 0 ? std::string(widths[column], '-') : std::string(widths[column] - 1, '-') + ":");
  }
  std::string text = line(table.header, widths, "| ", " | ", " |") + line(rule, widths, "| ", " | ", " |");
  for (const auto& row : table.rows) text += line(row, widths, "| ", " | ", " |");
  return text;
}

}  // namespace kvq
