#include <deque>

#include "support/catch.h"

#include <kvq/core/error.h>
#include <kvq/quant/recipe_traits.h>

using namespace kvq;

TEST_CASE("What is settled is what a cache that is told token by token has quantized") {
  for (const int sinks : {0, 1, 5, 16}) {
    for (const int recent : {0, 1, 7, 64}) {
      for (const int flush : {1, 2, 8, 32}) {
        const ExactWindow window{sinks, recent, flush};
        std::deque<int> exact;
        int settled = 0;
        for (int token = 0; token < 200; ++token) {
          exact.push_back(token);
          // The oldest ones leave, up to the next multiple of `flush`, when `recent` tokens stay behind them.
          for (;;) {
            const int next = (exact.empty() ? token + 1 : exact.front()) / flush * flush + flush;
            if (exact.empty() || token + 1 - next < recent) break;
            while (!exact.empty() && exact.front() < next) exact.pop_front();
          }
          settled = exact.empty() ? token + 1 : exact.front();
          settled = std::max(settled, std::min(sinks, token + 1));
          REQUIRE(window.settled(token + 1) == settled);
          REQUIRE(token + 1 - settled <= std::max<std::int64_t>(window.room() - (flush > 1 ? 1 : 0), 0));
        }
      }
    }
  }
  CHECK(exact_window(parse_recipe("kivi2"), Side::Key).settled(255) == 128);
  CHECK(exact_window(parse_recipe("kivi2"), Side::Key).settled(256) == 256);
  CHECK(exact_window(parse_recipe("kivi2"), Side::Value).settled(256) == 128);
  CHECK_FALSE(exact_window(parse_recipe("nuq3-1%"), Side::Key).waits());
}
