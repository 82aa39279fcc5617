// Recipes that need the sign of a gradient are not fitted to magnitudes.
#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/fit/fit.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Magnitudes over query heads serve plain Fisher weights, and nothing that needs signs") {
  TempDir folder;
  for (const std::string mode : {"mean", "max"}) {
    write_small_calibration(folder / "c.h5", nullptr, std::string(64, 'a'), mode);
    const CalibrationReader calibration(folder / "c.h5");
    CHECK(calibration.header().query_heads == mode);
    for (const char* recipe :
         {"nuq3", "nuq2:share=head,qnorm", "nuq2:weights=none,rope=post", "fp8", "nuq3:clip=0.9"}) {
      INFO(recipe);
      CHECK_NOTHROW(check_fit(calibration, nullptr, {parse_recipe(recipe)}));
    }
    for (const char* recipe : {"nuq3:feedback", "nuq3:icm=2", "nuq3:rope=post", "int4:rope=post",
                               "K=nuq3/V=nuq2:rotate=hadamard", "K=nuq3/V=nuq3:feedback"}) {
      INFO(recipe);
      CHECK_THROWS_WITH(
          check_fit(calibration, nullptr, {parse_recipe(recipe)}),
          ContainsSubstring("need gradients with their sign") && ContainsSubstring("--query-heads " + mode));
    }
  }
  write_small_calibration(folder / "joint.h5");
  const CalibrationReader joint(folder / "joint.h5");
  CHECK(joint.header().query_heads == "joint");
  CHECK_NOTHROW(check_fit(joint, nullptr, {parse_recipe("nuq3:feedback"), parse_recipe("nuq3:rope=post")}));
}

TEST_CASE("Codebooks do not depend on the sign of gradients, so equal parts give what the gradient itself gives") {
  TempDir folder;
  const Change magnitudes = [](float value, int, Side, bool gradient, int, int) {
    return gradient ? std::abs(value) : value;
  };
  write_small_calibration(folder / "joint.h5");
  write_small_calibration(folder / "mean.h5", magnitudes, std::string(64, 'a'), "mean");
  const CalibrationReader joint(folder / "joint.h5"), mean(folder / "mean.h5");
  const std::vector<Recipe> recipes = {parse_recipe("nuq3"), parse_recipe("nuq2:share=head")};
  const auto a = fit_quantizers(joint, nullptr, recipes, quiet_context()),
             b = fit_quantizers(mean, nullptr, recipes, quiet_context());
  for (std::size_t index = 0; index < recipes.size(); ++index)
    for (int layer = 0; layer < kSmallShape.layers; ++layer)
      for (const Side side : kSides)
        for (std::size_t book = 0; book < a[index].layers[layer].side(side).codebooks.size(); ++book)
          CHECK(a[index].layers[layer].side(side).codebooks[book].centroids ==
                b[index].layers[layer].side(side).codebooks[book].centroids);
}
