// Quantizer files of recipes with feedback, widths per pair, grouped levels and rotation.
#include <algorithm>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>

using namespace kvq;
using namespace kvq::test;

namespace {

QuantizerFile rounding_quantizer(const std::string& recipe) {
  QuantizerFile file = sample_quantizer(recipe);
  for (LayerQuantizer& layer : file.quantizer.layers) {
    for (const Side which : kSides) {
      SideQuantizer& side = layer.side(which);
      const int dim = side.head_dim, width = side.width();
      side.codebooks.clear();
      if (side.recipe.widths == Widths::Pair) {
        for (const int bits : width_choices(side.recipe)) side.codebooks.push_back(uniform_levels(1 << bits));
        for (int channel = 0; channel < width; ++channel) side.widths.push_back(channel % 2 == 0 ? 1 : 3);
      } else {
        side.codebooks.push_back(uniform_levels(code_levels(side.recipe)));
      }
      if (side.recipe.rotation != Rotation::None) {
        for (int channel = 0; channel < width; ++channel)
          side.rotation_scale.push_back(0.5f + static_cast<float>(channel));
      }
      for (int row = 0; row < width; ++row) {
        side.feedback.order.push_back(dim - 1 - row % dim);
        for (int column = 0; column < dim; ++column) {
          side.feedback.updates.push_back(column > row % dim ? 0.25f : 0.0f);
          side.feedback.hessian.push_back(column == row % dim ? 1.5f : -0.125f);
        }
      }
      const RoundingRecipe& rounding = side.recipe.rounding;
      if (!rounding.uses_blocks()) side.feedback.order.clear();
      if (!rounding.feedback) side.feedback.updates.clear();
      if (rounding.icm == 0) side.feedback.hessian.clear();
    }
  }
  return file;
}

std::string refusal_of(const QuantizerFile& file) {
  TempDir folder;
  write_quantizer(folder / "q.h5", file, false);
  try {
    read_quantizer(folder / "q.h5");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Format);
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("A quantizer with feedback, widths and rotation comes back as it was written") {
  TempDir folder;
  for (const std::string recipe :
       {"kvq2", "kvq2:icm=0,damp=5%", "kvq2:feedback=off", "nuq2-1%:feedback", "nuq1:levels=3"}) {
    const auto path = folder / (slug(parse_recipe(recipe)) + ".h5");
    const QuantizerFile written = rounding_quantizer(recipe);
    write_quantizer(path, written, false);
    const QuantizerFile read = read_quantizer(path);
    INFO(recipe);
    CHECK(read.quantizer.recipe == written.quantizer.recipe);
    for (std::size_t layer = 0; layer < read.quantizer.layers.size(); ++layer) {
      for (const Side side : kSides) {
        const SideQuantizer& a = read.quantizer.layers[layer].side(side);
        const SideQuantizer& b = written.quantizer.layers[layer].side(side);
        CHECK(a.widths == b.widths);
        CHECK(a.rotation_scale == b.rotation_scale);
        CHECK(a.feedback.order == b.feedback.order);
        CHECK(a.feedback.updates == b.feedback.updates);
        CHECK(a.feedback.hessian == b.feedback.hessian);
        REQUIRE(a.codebooks.size() == b.codebooks.size());
        for (std::size_t book = 0; book < a.codebooks.size(); ++book)
          CHECK(a.codebooks[book].centroids == b.codebooks[book].centroids);
      }
    }
  }
}

TEST_CASE("Tables of feedback that cannot be right are refused by name") {
  const QuantizerFile good = rounding_quantizer("kvq2");
  CHECK(refusal_of(good) == "accepted");
  QuantizerFile bad = good;
  bad.quantizer.layers[1].key.widths[0] = 4;
  CHECK_THAT(refusal_of(bad),
             ContainsSubstring("'/layers/01/key/widths'") && ContainsSubstring("every head vector has 12"));
  bad.quantizer.layers[1].key.widths[0] = 9;
  CHECK_THAT(refusal_of(bad), ContainsSubstring("1 to 4 are possible"));
  bad = good, bad.quantizer.layers[0].value.rotation_scale[2] = 0.0f;
  CHECK_THAT(refusal_of(bad), ContainsSubstring("rotation_scale") && ContainsSubstring("[0, 2]"));
  bad = good, bad.quantizer.layers[0].value.feedback.order[1] = bad.quantizer.layers[0].value.feedback.order[0];
  CHECK_THAT(refusal_of(bad), ContainsSubstring("coding_order") && ContainsSubstring("twice"));
  bad = good, bad.quantizer.layers[0].key.feedback.hessian[0] = -1.0f;
  CHECK_THAT(refusal_of(bad), ContainsSubstring("/key/fisher"));
  bad = good, bad.quantizer.layers[0].key.feedback.hessian[1] += 0.5f;
  CHECK_THAT(refusal_of(bad), ContainsSubstring("not symmetric"));
  bad = good, bad.quantizer.layers[0].key.feedback.updates[0] = 0.5f;
  CHECK_THAT(refusal_of(bad), ContainsSubstring("/key/feedback") && ContainsSubstring("later channels only"));
  bad = good, bad.quantizer.layers[0].key.feedback.updates[1] = 3e38f;
  CHECK_THAT(refusal_of(bad), ContainsSubstring("far more than an error"));
  bad = good, std::swap(bad.quantizer.layers[0].key.codebooks[1].centroids[0],
                        bad.quantizer.layers[0].key.codebooks[1].centroids[1]);
  CHECK_THAT(refusal_of(bad), ContainsSubstring("centroids_2") && ContainsSubstring("not sorted"));
}

TEST_CASE("Recipes with feedback keep their meaning through TOML") {
  for (const std::string text : {"kvq1.5", "kvq2", "kvq3:sink=4", "kvq4:icm=0,order=natural,damp=10%,clip=1",
                                 "K=nuq2.5-1%:widths=pair/V=nuq2-1%:rotate=hadamard", "nuq2:levels=5",
                                 "nuq2-1%:feedback", "nuq3-1%:clip=0.95"}) {
    const Recipe recipe = parse_recipe(text);
    CAPTURE(recipe_to_toml(recipe));
    CHECK(recipe_from_toml(recipe_to_toml(recipe), "test") == recipe);
  }
  const auto refused = [](const std::string& toml) -> std::string {
    try {
      recipe_from_toml("[key]\ncodebook = \"nuq\"\nbits = 2\n[value]\ncodebook = \"nuq\"\nbits = 2\n" + toml, "test");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refused("levels = 4\nclip = 0.5\nrotate = \"hadamard\"\nfeedback = true\nicm = 2") == "accepted");
  CHECK_THAT(refused("levels = 6"), ContainsSubstring("6 levels beside 2 bits"));
  CHECK_THAT(refused("widths = \"pair\""), ContainsSubstring("widths"));
  CHECK_THAT(refused("order = \"random\""), ContainsSubstring("energy, ascending, natural"));
  CHECK_THAT(refused("clip = 2"), ContainsSubstring("clip"));
}
