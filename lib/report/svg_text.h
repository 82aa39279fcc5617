#pragma once
// What all charts are written with.

#include <string>

namespace kvq {

/// `<svg …>` that scales with its surroundings; `alternative` is what is read out in its place.
std::string svg_open(double width, double height, const std::string& alternative);
/// `anchor`: start, middle or end; `css_class` may be empty.
std::string svg_text(double x, double y, const char* anchor, const std::string& css_class, const std::string& text);
/// About how wide a text is. Fonts differ: for placing, not for cutting.
double svg_text_width(const std::string& text, double font_size);

}  // namespace kvq
