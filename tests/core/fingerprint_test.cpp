#include "support/catch.h"

#include <algorithm>
#include <vector>

#include <kvq/core/fingerprint.h>
#include <kvq/core/rng.h>

using namespace kvq;

namespace {
std::vector<std::int32_t> random_ids(std::uint64_t seed, int count) {
  Rng rng(seed);
  std::vector<std::int32_t> ids;
  for (int token = 0; token < count; ++token) ids.push_back(static_cast<std::int32_t>(rng.below(50000)));
  return ids;
}
}  // namespace

TEST_CASE("A text overlaps itself wholly, wherever it begins") {
  const std::vector<std::int32_t> ids = random_ids(1, 20000);
  const auto known = fingerprints(ids);
  CHECK(overlap(known, known) == 1.0);
  for (std::size_t shift : {1u, 7u, 1000u, 10000u}) {
    const auto part = fingerprints(std::span(ids).subspan(shift));
    CHECK(overlap(part, known) == 1.0);
  }
}

TEST_CASE("A passage is found inside another text in proportion to its length") {
  std::vector<std::int32_t> ids = random_ids(2, 10000);
  const std::vector<std::int32_t> borrowed = random_ids(3, 30000);
  ids.insert(ids.begin() + 5000, borrowed.begin() + 1234, borrowed.begin() + 11234);
  CHECK(overlap(fingerprints(ids), fingerprints(borrowed)) == Approx(0.5).margin(0.08));
}

TEST_CASE("Unrelated texts do not overlap") {
  CHECK(overlap(fingerprints(random_ids(4, 20000)), fingerprints(random_ids(5, 20000))) == 0.0);
}

TEST_CASE("About one shingle in 32 is kept, in ascending order without duplicates") {
  const auto kept = fingerprints(random_ids(6, 100000));
  CHECK(kept.size() > 100000 / kKeepOneIn * 0.9);
  CHECK(kept.size() < 100000 / kKeepOneIn * 1.1);
  CHECK(std::is_sorted(kept.begin(), kept.end()));
  CHECK(std::adjacent_find(kept.begin(), kept.end()) == kept.end());
  const auto repeated = fingerprints(std::vector<std::int32_t>(5000, 7));
  CHECK(repeated.size() <= 1);
}

TEST_CASE("Texts shorter than a shingle have no fingerprints") {
  CHECK(fingerprints(random_ids(7, kShingle - 1)).empty());
  CHECK(fingerprints({}).empty());
  CHECK(overlap({}, fingerprints(random_ids(8, 1000))) == 0.0);
}
