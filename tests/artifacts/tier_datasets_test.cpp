// Quantizer files of recipes with tiers.
#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Codebooks of tiers come back as they were written") {
  TempDir folder;
  for (const std::string recipe :
       {"adaptive:hi=4,lo=2", "nuq4:share=head,mid=3,lo=1", "adaptive:hi=3,lo=1,by=window"}) {
    INFO(recipe);
    const auto path = folder / (slug(parse_recipe(recipe)) + ".h5");
    const QuantizerFile written = sample_quantizer(recipe);
    write_quantizer(path, written, false);
    const QuantizerFile read = read_quantizer(path);
    CHECK(read.quantizer.recipe == written.quantizer.recipe);
    for (std::size_t layer = 0; layer < 3; ++layer) {
      for (const Side which : kSides) {
        const SideQuantizer& a = read.quantizer.layers[layer].side(which);
        const SideQuantizer& b = written.quantizer.layers[layer].side(which);
        REQUIRE(a.lower_tiers.size() == b.lower_tiers.size());
        for (std::size_t tier = 0; tier < a.lower_tiers.size(); ++tier) {
          CHECK(a.lower_tiers[tier].bits == b.lower_tiers[tier].bits);
          REQUIRE(a.lower_tiers[tier].codebooks.size() == b.lower_tiers[tier].codebooks.size());
          for (std::size_t book = 0; book < a.lower_tiers[tier].codebooks.size(); ++book) {
            CHECK(a.lower_tiers[tier].codebooks[book].centroids == b.lower_tiers[tier].codebooks[book].centroids);
            CHECK(a.lower_tiers[tier].codebooks[book].decoded == b.lower_tiers[tier].codebooks[book].decoded);
          }
        }
      }
    }
    CHECK(table_bytes(read.quantizer) == table_bytes(written.quantizer));
  }
}

TEST_CASE("Damaged codebooks of tiers are refused by name") {
  TempDir folder;
  const auto refused = [&](const std::function<void(hid_t)>& change) {
    const auto path = folder / "damaged.h5";
    write_quantizer(path, sample_quantizer("adaptive:hi=4,lo=2"), true);
    edit(path, change);
    return refusal(read_whole_quantizer, path);
  };
  const auto contains = [](const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
  };
  contains(refused([](hid_t file) { H5Ldelete(file, "/layers/01/value/tier_2", H5P_DEFAULT); }),
           "/layers/01/value/tier_2");
  contains(refused([](hid_t file) { overwrite(file, "/layers/00/key/tier_2/centroids", 1, 9.0f); }), "is not sorted");
  contains(refused([](hid_t file) {
             replace_dataset(file, "/layers/00/key/tier_2/centroids", H5T_IEEE_F32LE, {1, 8});
           }),
           "/layers/00/key/tier_2/centroids");
}

TEST_CASE("The long form says how tokens get their tiers, and only what can be") {
  const std::string text = recipe_to_toml(parse_recipe("adaptive:hi=4,mid=3,lo=2,hysteresis=50%"));
  CHECK(text.find("\n[tiers]\nby = \"past\"\nper = \"layer\"\nmid = 3\nlo = 2\nhi-share = 0.25\nmid-share = 0.25\n"
                  "keep = 1.0\nnewest = 32\ndecay = 1.0\nhysteresis = 0.5\n") != std::string::npos);
  const auto problem = [](const std::string& tiers, const std::string& top = "") {
    const std::string side = "codebook = \"nuq\"\nbits = 4\n";
    try {
      recipe_from_toml(top + "[key]\n" + side + "[value]\n" + side + "[tiers]\n" + tiers, "test");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto contains = [](const std::string& found, const std::string& part) {
    INFO(found);
    CHECK(found.find(part) != std::string::npos);
  };
  CHECK(problem("lo = 2\n") == "accepted");
  contains(problem("hi-share = 0.5\n"), "'tiers.lo' is missing");
  contains(problem("lo = 0\n"), "'tiers.lo' is 0");
  contains(problem("lo = 4\n"), "lo=4 must be less");
  contains(problem("lo = 2\nby = \"then\"\n"), "'tiers.by' is 'then'; known: past, window");
  contains(problem("lo = 2\nhigh = 3\n"), "tiers.high");
  contains(problem("lo = 2\nhysteresis = -0.5\n"), "hysteresis -50 %");
  contains(problem("lo = 2\n", "quantized = false\n"), "'tiers' are of bits");
}
