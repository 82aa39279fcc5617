#include "support/catch.h"

#include <kvq/report/chart.h>
#include <kvq/report/html.h>

using namespace kvq;

TEST_CASE("Names cannot leave their element: markup is escaped, bytes that are no text are replaced") {
  CHECK(escape_html("a<b> & \"c\"") == "a&lt;b&gt; &amp; &quot;c&quot;");
  CHECK(escape_html("ΔNLL 1 %") == "ΔNLL 1 %");
  const std::string replacement = "\xef\xbf\xbd";
  CHECK(escape_html("\xff"
                    "a\xc3") == replacement + "a" + replacement);
  CHECK(escape_html("\xed\xa0\x80") == replacement + replacement + replacement);  // a surrogate
  CHECK(escape_html("\xc0\xaf") == replacement + replacement);                    // overlong
  CHECK(escape_html(std::string("\x01\n\0", 3)) == replacement + "\n" + replacement);
}

TEST_CASE("A table has headings for its columns and rows") {
  const std::string html = html_table({{"cache", "KL"}, {{"nuq3-1%", "0.07"}}}, "cap & tion");
  CHECK_THAT(html, ContainsSubstring("<caption>cap &amp; tion</caption>") &&
                       ContainsSubstring("<th scope=\"col\">KL</th>") &&
                       ContainsSubstring("<th scope=\"row\">nuq3-1%</th><td>0.07</td>"));
}

TEST_CASE("A chart tells its content to those who cannot see it, and leaves out what cannot be placed") {
  Chart chart;
  chart.title = "KL <1>";
  chart.text = "nuq3: 0.07";
  chart.log_y = true;
  chart.series = {{"one", {{2, 0.1, 0.2, "a"}, {3, 0.05, std::nullopt, "b"}, {4, 0.0 / 0.0, std::nullopt, "c"}}},
                  {"two", {{2, 0.2, std::nullopt, ""}}, 1}};
  const std::string html = chart_figure(chart);
  CHECK_THAT(html, ContainsSubstring("role=\"img\" aria-label=\"KL &lt;1&gt;. nuq3: 0.07\"") &&
                       ContainsSubstring("class=\"legend\""));
  CHECK_THAT(html, !ContainsSubstring("nan") && !ContainsSubstring("inf"));
  CHECK_THAT(html, ContainsSubstring("a: 2, 0.1 ± 0.2") && !ContainsSubstring("c: 4"));
}

TEST_CASE("A heat map shades by value, marks what is missing and names it on hovering") {
  HeatMap map;
  map.title = "KL";
  map.column_name = "layer";
  map.rows = {"keys"};
  map.columns = {"0", "1", "2"};
  map.cells = {{0.1, std::nullopt, 0.4}};
  map.value_name = "nats";
  const std::string html = heat_map_figure(map);
  CHECK_THAT(html, ContainsSubstring("fill-opacity=\"0.06\"><title>keys, layer 0: 0.1</title>") &&
                       ContainsSubstring("fill-opacity=\"0.72\"><title>keys, layer 2: 0.4</title>") &&
                       ContainsSubstring("missing") && ContainsSubstring("keys, layer 1: not measured"));
}

TEST_CASE("A histogram without values is drawn flat") {
  Histogram histogram;
  histogram.title = "empty";
  histogram.counts.assign(80, 0);
  histogram.ticks = {-1, 1, 7};
  CHECK_THAT(histogram_figure(histogram), !ContainsSubstring("nan"));
}
