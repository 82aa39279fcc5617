#include <kvq/report/html.h>

#include <cstdint>

#include <fmt/format.h>

namespace kvq {

namespace {

/// Bytes of a cell from which on it is text that may be broken into lines.
constexpr std::size_t kLongCell = 34;

/// Length of the UTF-8 character at `at`, 0 when it is none (or a surrogate, or overlong).
std::size_t character_length(const std::string& text, std::size_t at) {
  const auto byte = [&](std::size_t index) -> std::uint32_t {
    return index < text.size() ? static_cast<unsigned char>(text[index]) : 0u;
  };
  const std::uint32_t first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 && first < 0xf5   ? 4
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xc2 && first < 0xe0 ? 2
                                                             : 0;
  std::uint32_t code = length == 4 ? first & 7u : length == 3 ? first & 15u : first & 31u;
  for (std::size_t index = 1; index < length; ++index) {
    if ((byte(at + index) & 0xc0u) != 0x80u) return 0;
    code = code << 6 | (byte(at + index) & 63u);
  }
  const bool wrong = (length == 3 && (code < 0x800 || (code >= 0xd800 && code < 0xe000))) ||
                     (length == 4 && (code < 0x10000 || code > 0x10ffff));
  return wrong ? 0 : length;
}

// Series colours are told apart by people with the common colour deficiencies; marks differ in shape as well.
constexpr const char* kStyle = R"css(
:root{color-scheme:light dark;--page:#fff;--ink:#1b1f24;--soft:#59636e;--rule:#d4d9df;--band:#f4f6f8;--answer:#eef4fc;
--heat:31,95,191;--bar:#9db7dc;--mark:#c2410c;
--s0:#1f5fbf;--s1:#c2410c;--s2:#14804a;--s3:#8a3ffc;--s4:#a56a00;--s5:#c0267e;--s6:#0b7f8c;--s7:#5c6670}
@media (prefers-color-scheme:dark){:root{--page:#14171b;--ink:#e6e9ed;--soft:#9aa4b0;--rule:#343b44;--band:#1d2228;--answer:#182536;
--heat:96,158,255;--bar:#3f5f8f;--mark:#ff9a5c;
--s0:#6ea8ff;--s1:#ff8f57;--s2:#4fcf8b;--s3:#bd93ff;--s4:#e3b341;--s5:#ff7ac1;--s6:#48c9d8;--s7:#a5afba}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main{max-width:72rem;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.55rem;line-height:1.25;margin:.2rem 0 .4rem}
h2{font-size:1.2rem;margin:2.2rem 0 .5rem;padding-bottom:.25rem;border-bottom:1px solid var(--rule)}
h3{font-size:1rem;margin:1.3rem 0 .4rem}
p,li{max-width:60rem}
.about{color:var(--soft);margin:.2rem 0}
.answer{background:var(--answer);border-left:4px solid var(--s0);padding:.8rem 1rem;margin:1rem 0;font-size:1.15rem;line-height:1.45;border-radius:0 6px 6px 0}
.note{color:var(--soft);font-size:.9rem}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.93rem}
caption{text-align:left;color:var(--soft);padding-bottom:.3rem}
th,td{padding:.3rem .6rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
.long{white-space:normal;text-align:left;min-width:min(18rem,45vw)}
th{font-weight:600}
thead th{border-bottom:2px solid var(--rule);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--page)}
tbody th{font-weight:500}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}
.small{grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.5rem}
figure{margin:0;border:1px solid var(--rule);border-radius:8px;padding:.5rem;background:var(--page);break-inside:avoid}
.small figure{padding:.25rem}
figcaption{font-size:.9rem;color:var(--soft);padding:.1rem .3rem .3rem}
svg{display:block;width:100%;height:auto}
.wide svg{min-width:40rem}
svg text{fill:currentColor;font-family:inherit;font-size:12px}
svg .axis{fill:var(--soft)}
svg .small{font-size:10.5px}
svg .grid{stroke:var(--rule);stroke-width:1;fill:none}
svg .frame{stroke:var(--soft);stroke-width:1;fill:none}
svg .halo{paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
svg .bars{fill:var(--bar);stroke:none}
svg .ticks{stroke:var(--mark);stroke-width:1.4;fill:none}
svg .bound{stroke:var(--ink);stroke-width:1;stroke-dasharray:3 2;fill:none}
svg .cell{stroke:var(--page);stroke-width:1}
svg .heat{fill:rgb(var(--heat))}
svg .missing{fill:var(--band)}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
svg .curve{stroke:var(--c);stroke-width:1.8;fill:none;stroke-linejoin:round}
svg .dashed{stroke-dasharray:5 3}
svg .point{fill:var(--c);stroke:var(--page);stroke-width:1}
svg .error{stroke:var(--c);stroke-width:1.2;fill:none}
.legend{display:flex;flex-wrap:wrap;gap:.1rem .9rem;list-style:none;margin:.2rem 0 0;padding:0 .3rem;font-size:.85rem}
.legend svg{display:inline-block;width:1.6em;height:.8em;vertical-align:baseline;min-width:0}
details{margin:.5rem 0;border:1px solid var(--rule);border-radius:8px;padding:.4rem .7rem}
summary{cursor:pointer;font-weight:600}
pre{overflow-x:auto;background:var(--band);border-radius:6px;padding:.6rem .8rem;font-size:.85rem;line-height:1.45;white-space:pre-wrap;overflow-wrap:anywhere}
code{font-family:ui-monospace,"DejaVu Sans Mono",Menlo,Consolas,monospace;font-size:.92em}
.hashes td,.hashes th{white-space:normal;overflow-wrap:anywhere;text-align:left}
@media (max-width:30rem){main{padding:.8rem .7rem 2rem}h1{font-size:1.3rem}.answer{font-size:1.05rem}th,td{padding:.3rem .45rem}
.small{grid-template-columns:repeat(2,1fr)}}
@media print{:root{color-scheme:light;--page:#fff;--ink:#000;--soft:#444;--rule:#bbb;--band:#f4f4f4;--answer:#f2f2f2;--heat:31,95,191;
--bar:#9db7dc;--mark:#c2410c;--s0:#1f5fbf;--s1:#c2410c;--s2:#14804a;--s3:#8a3ffc;--s4:#a56a00;--s5:#c0267e;--s6:#0b7f8c;--s7:#5c6670}
body{font-size:10.5pt;print-color-adjust:exact;-webkit-print-color-adjust:exact}main{max-width:none;padding:0}h2{break-after:avoid}
.scroll{overflow:visible}table{font-size:8pt}th,td{padding:.15rem .3rem;white-space:normal;overflow-wrap:anywhere}.long{min-width:8rem}details{break-inside:auto}
details::details-content{content-visibility:visible;display:block}}
)css";

}  // namespace

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (std::size_t at = 0; at < text.size();) {
    const char byte = text[at];
    const std::size_t length = character_length(text, at);
    const auto code = static_cast<unsigned char>(byte);
    if (length == 0 || (code < 0x20 && byte != '\n' && byte != '\t' && byte != '\r') || code == 0x7f) {
      escaped += "\xef\xbf\xbd";
      ++at;
      continue;
    }
    switch (byte) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped.append(text, at, length);
    }
    at += length;
  }
  return escaped;
}

std::string html_table(const Table& table, const std::string& caption) {
  std::string html = "<div class=\"scroll\"><table>";
  if (!caption.empty()) html += fmt::format("<caption>{}</caption>", escape_html(caption));
  html += "\n<thead><tr>";
  for (const std::string& cell : table.header) html += fmt::format("<th scope=\"col\">{}</th>", escape_html(cell));
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& cell : row) {
      const char* wraps = cell.size() > kLongCell ? " class=\"long\"" : "";
      html += &cell == &row.front() ? fmt::format("<th scope=\"row\"{}>{}</th>", wraps, escape_html(cell))
                                    : fmt::format("<td{}>{}</td>", wraps, escape_html(cell));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string html_page(const std::string& title, const std::string& body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<title>{}</title>\n<style>{}</style>\n</head>\n"
      "<body>\n<main>\n{}</main>\n</body>\n</html>\n",
      escape_html(title), kStyle, body);
}

}  // namespace kvq
