#include "support/catch.h"

#include <kvq/report/table.h>

using namespace kvq;

TEST_CASE("Text tables align the first column left and the others right") {
  const Table table{{"cache", "bits", "ppl"}, {{"none", "16", "20.967"}, {"nuq3-1%", "3.4", "23"}}};
  CHECK(to_text(table) ==
        "cache    bits     ppl\n"
        "---------------------\n"
        "none       16  20.967\n"
        "nuq3-1%   3.4      23\n");
}

TEST_CASE("Widths count code points, so that ΔNLL and – line up") {
  const Table table{{"cache", "ΔNLL"}, {{"none", "–"}, {"é", "0.0123"}}};
  CHECK(to_text(table) ==
        "cache    ΔNLL\n"
        "-------------\n"
        "none        –\n"
        "é      0.0123\n");
}

TEST_CASE("Lines carry no trailing blanks") {
  const Table table{{"cache", "a"}, {{"x", ""}}};
  CHECK(to_text(table) == "cache  a\n--------\nx\n");
}

TEST_CASE("Markdown tables have a rule that aligns the numbers") {
  const Table table{{"cache", "ΔNLL"}, {{"none", "–"}, {"nuq3", "0.1"}}};
  CHECK(to_markdown(table) ==
        "| cache | ΔNLL |\n"
        "| ----- | ---: |\n"
        "| none  |    – |\n"
        "| nuq3  |  0.1 |\n");
}

TEST_CASE("A bar in a Markdown cell does not end the cell") {
  const Table table{{"cache"}, {{"a|b"}}};
  CHECK(to_markdown(table) == "| cache |\n| ----- |\n| a\\|b  |\n");
}

TEST_CASE("A table of one narrow column keeps a valid rule") {
  CHECK(to_markdown({{"c", "x"}, {}}) == "| c |  x |\n| - | -: |\n");
}
