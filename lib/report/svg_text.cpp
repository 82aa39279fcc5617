#include <kvq/report/svg_text.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/report/html.h>

namespace kvq {

std::string svg_open(double width, double height, const std::string& alternative) {
  return fmt::format("<svg viewBox=\"0 0 {:g} {:g}\" role=\"img\" aria-label=\"{}\">", width, height,
                     escape_html(alternative));
}

std::string svg_text(double x, double y, const char* anchor, const std::string& css_class, const std::string& text) {
  const std::string name = css_class.empty() ? "" : fmt::format(" class=\"{}\"", css_class);
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>", x, y, anchor, name,
                     escape_html(text));
}

double svg_text_width(const std::string& text, double font_size) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
  return 0.6 * font_size * static_cast<double>(characters);
}

}  // namespace kvq
