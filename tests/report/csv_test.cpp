#include "support/catch.h"

#include <kvq/report/csv.h>

using namespace kvq;

TEST_CASE("CSV quotes what a comma, a quote or a line break would split, and nothing else") {
  const Table table{{"name", "nll"}, {{"nuq3-1%:qnorm,sink=4", "3.1"}, {"say \"no\"", ""}, {"two\nlines", "-0.5"}}};
  CHECK(to_csv(table) == "name,nll\n\"nuq3-1%:qnorm,sink=4\",3.1\n\"say \"\"no\"\"\",\n\"two\nlines\",-0.5\n");
}
