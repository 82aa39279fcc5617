// A recipe with tiers is fitted as its tiers are by themselves.
#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/fit/fit.h>
#include <kvq/quant/recipe_traits.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("Each tier has the codebooks of the recipe of its bits, fitted once for all recipes") {
  TempDir folder;
  write_small_calibration(folder / "calib.h5");
  const CalibrationReader calibration(folder / "calib.h5");
  RunContext context = quiet_context();
  std::vector<Recipe> recipes;
  for (const char* text : {"nuq4:mid=3,lo=1,share=head", "nuq1:share=head", "nuq4:share=head", "nuq3:share=head",
                           "nuq4:lo=3,share=head,by=window"})
    recipes.push_back(parse_recipe(text));
  std::vector<FitReport> reports;
  const std::vector<Quantizer> fitted = fit_quantizers(calibration, nullptr, recipes, context, &reports);
  REQUIRE(fitted.size() == 5);
  REQUIRE(reports.size() == 5);
  CHECK(reports[0].error == reports[2].error);
  for (std::size_t layer = 0; layer < fitted[0].layers.size(); ++layer) {
    for (const Side which : kSides) {
      const auto side = [&](int index) -> const SideQuantizer& {
        return fitted[static_cast<std::size_t>(index)].layers[layer].side(which);
      };
      CHECK(side(0).recipe.bits == 4);
      CHECK(side(0).lower == side(2).lower);
      REQUIRE(side(0).lower_tiers.size() == 2);
      CHECK(side(0).lower_tiers[0].bits == 3);
      CHECK(side(0).lower_tiers[1].bits == 1);
      for (std::size_t book = 0; book < side(0).codebooks.size(); ++book) {
        CHECK(side(0).codebooks[book].decoded == side(2).codebooks[book].decoded);
        CHECK(side(0).lower_tiers[0].codebooks[book].decoded == side(3).codebooks[book].decoded);
        CHECK(side(0).lower_tiers[1].codebooks[book].decoded == side(1).codebooks[book].decoded);
        CHECK(side(4).lower_tiers[0].codebooks[book].decoded == side(3).codebooks[book].decoded);
      }
      CHECK(side(0).lower_tiers[1].codebooks.size() == 2);
      CHECK(side(2).lower_tiers.empty());
    }
  }
}
