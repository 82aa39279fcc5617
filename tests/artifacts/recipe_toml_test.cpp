#include <fstream>

#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

namespace {
const char* const kShortForms[] = {"none",
                                   "int4",
                                   "int4:key=token",
                                   "nf3",
                                   "nuq3-1%",
                                   "nuq2-1%:qnorm,sink=4,share=head",
                                   "K=nuq3-1%/V=nuq2-1%",
                                   "nuq8-0.125%:weights=none",
                                   "nuq1:weights=fisher-unscaled,sink=0",
                                   "nuq3-1%:rope=post",
                                   "nuq3-1%:cap=2%",
                                   "int2:range=window",
                                   "kivi2",
                                   "kivi4:group=64,recent=256",
                                   "atom3",
                                   "flexgen4",
                                   "q4_0",
                                   "q8_0:sink=4,rope=pre",
                                   "K=fp8:recent=16/V=nuq2-1%:rule=threshold,cap=2%",
                                   "nuq3-1%:rule=topk,share=16",
                                   "nuq2-2%:key=channel-group,value=channel-group,group=64,flush=128,recent=3",
                                   "nuq3-1%:key=token-group,range=static",
                                   "adaptive:hi=4,lo=2",
                                   "adaptive:hi=4,mid=3,lo=1,keep=80%,decay=0.99,hysteresis=50%,per=head",
                                   "adaptive:hi=4,mid=3,lo=2,hi-share=10%,mid-share=12.5%,by=window",
                                   "int4:lo=2,newest=7"};
constexpr const char* kSide = "codebook = \"nuq\"\nbits = 3\n";

std::string toml(const std::string& key, const std::string& value = kSide, const std::string& top = "") {
  return top + "[key]\n" + key + "[value]\n" + value;
}
}  // namespace

TEST_CASE("Every short form survives its long form") {
  for (const char* text : kShortForms) {
    const Recipe recipe = parse_recipe(text);
    INFO(recipe_to_toml(recipe));
    CHECK(recipe_from_toml(recipe_to_toml(recipe), "test") == recipe);
  }
}

TEST_CASE("The long form is written out in full") {
  CHECK(recipe_to_toml(parse_recipe("nuq3-1%")) == R"(# nuq3-1%
sinks = 1

[key]
codebook = "nuq"
bits = 3
axis = "channel"
range = "static"
rope = "pre"
outliers = 0.01
cap = 0.0
weights = "fisher"
share = "layer"
qnorm = false

[value]
codebook = "nuq"
bits = 3
axis = "token"
range = "online"
outliers = 0.01
weights = "fisher"
share = "layer"
qnorm = false
)");
}

TEST_CASE("Words of the literature's methods are written where they say something") {
  const std::string kivi = recipe_to_toml(parse_recipe("kivi2"));
  CHECK_THAT(kivi, ContainsSubstring("axis = \"channel-group\"\ngroup = 32\nrange = \"online\"\nrope = \"post\"\n"));
  CHECK_THAT(kivi, ContainsSubstring("flush = 128\n") && ContainsSubstring("recent = 128\n"));
  CHECK_THAT(recipe_to_toml(parse_recipe("atom4")), ContainsSubstring("zero = \"integer\"\n"));
  CHECK(recipe_from_toml("sinks = 0\n[key]\ncodebook = \"q4_0\"\nrope = \"post\"\n[value]\ncodebook = \"q4_0\"\n",
                         "test") == parse_recipe("q4_0"));
  CHECK(recipe_from_toml(toml("codebook = \"nuq\"\nbits = 3\naxis = \"token-group\"\nrecent = 5\n"), "test") ==
        parse_recipe("K=nuq3:key=token-group,recent=5/V=nuq3"));
}

TEST_CASE("What a long form leaves out is as in the short form") {
  CHECK(recipe_from_toml(toml(kSide), "test") == parse_recipe("nuq3"));
  CHECK(recipe_from_toml(toml("codebook = \"int\"\nbits = 4\naxis = \"token\"\n", "codebook = \"int\"\nbits = 4\n"),
                         "test") == parse_recipe("int4:key=token"));
  CHECK(recipe_from_toml(toml("codebook = \"nuq\"\nbits = 3\noutliers = 0\n"), "test") == parse_recipe("nuq3"));
}

TEST_CASE("Mistakes in a long form are named with place, value and what is known") {
  const auto message = [](const std::string& text) {
    try {
      recipe_from_toml(text, "my.toml");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::Usage);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbit = 3\n")),
             ContainsSubstring("my.toml") && ContainsSubstring("key.bits") && ContainsSubstring("missing"));
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbits = 3\nbit = 3\n")), ContainsSubstring("line 4") &&
                                                                           ContainsSubstring("'key.bit'") &&
                                                                           ContainsSubstring("codebook, bits, axis"));
  CHECK_THAT(message(toml("codebook = \"nuk\"\nbits = 3\n")),
             ContainsSubstring("'nuk'") && ContainsSubstring("nuq, int, nf"));
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbits = 9\n")), ContainsSubstring("9") && ContainsSubstring("1 to 8"));
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbits = \"3\"\n")), ContainsSubstring("must be a finite number"));
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbits = 3\noutliers = nan\n")), ContainsSubstring("finite"));
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbits = 3\noutliers = -1e-3\n")), ContainsSubstring("-0.001"));
  CHECK_THAT(message(toml("codebook = \"nuq\"\nbits = 3\nqnorm = 1\n")), ContainsSubstring("true or false"));
  CHECK_THAT(message(toml(kSide, "codebook = \"nuq\"\nbits = 3\nrope = \"pre\"\n")), ContainsSubstring("value.rope"));
  CHECK_THAT(message(toml(kSide, kSide, "sink = 1\n")), ContainsSubstring("'sink'") && ContainsSubstring("sinks"));
  CHECK_THAT(message("[key]\ncodebook = \"nuq\"\nbits = 3\n"), ContainsSubstring("'value' is missing"));
  CHECK_THAT(message("quantized = false\nsinks = 2\n"), ContainsSubstring("sinks"));
  CHECK_THAT(message("quantized = false\n[key]\n"), ContainsSubstring("quantized is false"));
  CHECK_THAT(message("sinks = 1\nsinks = 2\n"), ContainsSubstring("line 2"));
  CHECK_THAT(message("sinks = \n"), ContainsSubstring("line 1"));
  CHECK_THAT(message("key = 3\n"), ContainsSubstring("[key]"));
}

TEST_CASE("An argument is a short form or a TOML file") {
  TempDir folder;
  const auto path = folder / "a recipe.toml";
  write_bytes(path, recipe_to_toml(parse_recipe("nuq2-1%")));
  CHECK(resolve_recipe(path.string()) == parse_recipe("nuq2-1%"));
  CHECK(resolve_recipe("nuq2-1%") == parse_recipe("nuq2-1%"));
  CHECK_THROWS_WITH(resolve_recipe((folder / "none.toml").string()), ContainsSubstring("none.toml"));
  std::filesystem::create_directory(folder / "dir.toml");
  CHECK_THROWS_WITH(resolve_recipe((folder / "dir.toml").string()), ContainsSubstring("is a folder"));
  CHECK_THROWS_WITH(resolve_recipe("nuq9"), ContainsSubstring("nuq9"));
}

TEST_CASE("The recipes in configs/ are the long forms of the short forms in their first lines") {
  int found = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVQ_SOURCE_DIR "/configs/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    std::string first;
    std::getline(std::ifstream(entry.path()) >> std::ws, first);
    REQUIRE(first.substr(0, 2) == "# ");
    const Recipe recipe = parse_recipe(first.substr(2));
    INFO(entry.path());
    CHECK(read_bytes(entry.path()) == recipe_to_toml(recipe));
    CHECK(resolve_recipe(entry.path().string()) == recipe);
    CHECK(entry.path().stem() == slug(recipe));
    ++found;
  }
  CHECK(found >= 6);
}
