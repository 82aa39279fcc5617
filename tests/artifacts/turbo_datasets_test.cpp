// Quantizer files of turbo.
#include <cmath>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/vector/turbo_codec.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr KvShape kTurboShape{2, 4, 2, 16};

QuantizerFile turbo_quantizer(const std::string& recipe) {
  QuantizerFile file = sample_quantizer("int4");
  Quantizer& quantizer = file.quantizer;
  quantizer.recipe = parse_recipe(recipe);
  quantizer.shape = kTurboShape;
  quantizer.layers.assign(2, {});
  for (const Side which : kSides) {
    const SideRecipe& side_recipe = quantizer.recipe.side(which);
    const TurboOptions& options = side_recipe.turbo;
    const auto tables = std::make_shared<const TurboTables>(make_turbo_tables(options, side_recipe.bits, 16));
    for (LayerQuantizer& layer : quantizer.layers) {
      SideQuantizer& side = layer.side(which);
      side.recipe = side_recipe;
      side.kv_heads = 2, side.head_dim = 16;
      side.exponent = 3;
      side.turbo = tables;
      for (int head = 0; head < 2; ++head) {
        for (int channel = 0; channel < options.outlier_channels; ++channel)
          side.outlier_channels.push_back(channel + head);
      }
    }
  }
  return file;
}

}  // namespace

TEST_CASE("Rotations, levels, sketches and outlier channels come back as they were written") {
  TempDir folder;
  for (const std::string recipe :
       {"turbo3", "turbo2:rotation=hadamard", "turbo3:qjl", "turbo1:qjl",
        "K=turbo3:norm=fit/V=turbo2:seed=5,marginal=gauss",
        "turbo2:outlier-channels=8,outlier-bits=3,rotation=hadamard", "turbo2:qjl,outlier-channels=5,outlier-bits=4"}) {
    const auto path = folder / (slug(parse_recipe(recipe)) + ".h5");
    const QuantizerFile written = turbo_quantizer(recipe);
    write_quantizer(path, written, false);
    const QuantizerFile read = read_quantizer(path);
    INFO(recipe);
    CHECK(read.quantizer.recipe == written.quantizer.recipe);
    for (const Side which : kSides) {
      const SideQuantizer& a = read.quantizer.layers[1].side(which);
      const SideQuantizer& b = written.quantizer.layers[1].side(which);
      CHECK(a.exponent == 3);
      CHECK(a.outlier_channels == b.outlier_channels);
      CHECK(a.turbo->norm == b.turbo->norm);
      CHECK(a.turbo == read.quantizer.layers[0].side(which).turbo);
      REQUIRE(a.turbo->parts.size() == b.turbo->parts.size());
      for (std::size_t part = 0; part < a.turbo->parts.size(); ++part) {
        const TurboPart &c = a.turbo->parts[part], &d = b.turbo->parts[part];
        CHECK(c.bits == d.bits);
        CHECK(c.levels == d.levels);
        CHECK(c.rotation.table() == d.rotation.table());
        CHECK(c.rotation.is_matrix() == d.rotation.is_matrix());
        CHECK(c.sketch.has_value() == d.sketch.has_value());
        if (c.sketch && d.sketch) CHECK(c.sketch->table() == d.sketch->table());
      }
    }
  }
}

TEST_CASE("Damaged tables of turbo are refused by name") {
  TempDir folder;
  const auto refused = [&](const std::string& recipe, const std::function<void(hid_t)>& change) {
    const auto path = folder / "damaged.h5";
    write_quantizer(path, turbo_quantizer(recipe), true);
    edit(path, change);
    return refusal(read_whole_quantizer, path);
  };
  const std::string hadamard = "turbo2:rotation=hadamard", outliers = "turbo2:outlier-channels=4,outlier-bits=3";
  CHECK_THAT(refused("turbo3", [](hid_t file) { overwrite(file, "/turbo/key/rotation", 5, NAN); }),
             ContainsSubstring("/turbo/key/rotation") && ContainsSubstring("nan"));
  CHECK_THAT(refused("turbo3", [](hid_t file) { overwrite(file, "/turbo/key/rotation", 5, 2.0f); }),
             ContainsSubstring("/turbo/key/rotation") && ContainsSubstring("not orthogonal"));
  CHECK_THAT(refused("turbo3", [](hid_t file) { overwrite(file, "/turbo/value/levels", 0, 0.9f); }),
             ContainsSubstring("/turbo/value/levels") && ContainsSubstring("not sorted"));
  CHECK_THAT(refused("turbo3:qjl", [](hid_t file) { overwrite(file, "/turbo/key/sketch", 3, INFINITY); }),
             ContainsSubstring("/turbo/key/sketch"));
  CHECK_THAT(refused(hadamard, [](hid_t file) { overwrite(file, "/turbo/key/signs", 3, 0.5f); }),
             ContainsSubstring("/turbo/key/signs") && ContainsSubstring("0.5"));
  CHECK_THAT(refused("turbo3",
                     [](hid_t file) {
                       replace_dataset(file, "/turbo/key/rotation", H5T_IEEE_F32LE, {8, 32});
                     }),
             ContainsSubstring("/turbo/key/rotation"));
  CHECK_THAT(refused("turbo3", [](hid_t file) { H5Ldelete(file, "/turbo/value/levels", H5P_DEFAULT); }),
             ContainsSubstring("levels"));
  CHECK_THAT(refused("turbo3", [](hid_t file) { H5Ldelete(file, "/turbo", H5P_DEFAULT); }), ContainsSubstring("turbo"));
  CHECK_THAT(refused(outliers,
                     [](hid_t file) {
                       replace_dataset(file, "/layers/01/key/outlier_channels", H5T_STD_I32LE, {2, 4});
                     }),
             ContainsSubstring("/layers/01/key/outlier_channels") && ContainsSubstring("ascending"));
}

TEST_CASE("The long form of turbo holds all of its words and reads back") {
  for (const std::string recipe :
       {"turbo3", "turbo2:norm=unbiased,seed=3", "K=turbo3:qjl/V=turbo2:rotation=hadamard",
        "turbo2:outlier-channels=16,outlier-bits=3", "K=turbo4:rope=post,recent=8/V=nuq3-1%"}) {
    INFO(recipe_to_toml(parse_recipe(recipe)));
    CHECK(recipe_from_toml(recipe_to_toml(parse_recipe(recipe)), "test") == parse_recipe(recipe));
  }
  const std::string text = recipe_to_toml(parse_recipe("turbo2:outlier-channels=16,outlier-bits=3"));
  for (const char* line : {"codebook = \"turbo\"", "rotation = \"random\"", "marginal = \"sphere\"", "norm = \"exact\"",
                           "qjl = false", "outlier-channels = 16", "outlier-bits = 3", "seed = 0", "range = \"none\""})
    CHECK_THAT(text, ContainsSubstring(line));
  const std::string shortest = "[key]\ncodebook = \"turbo\"\nbits = 3\n[value]\ncodebook = \"turbo\"\nbits = 2\n";
  CHECK(recipe_from_toml("sinks = 0\n" + shortest, "test") == parse_recipe("K=turbo3/V=turbo2"));
  const auto said = [](const std::string& toml) -> std::string {
    try {
      recipe_from_toml(toml, "test");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK_THAT(said("[key]\ncodebook = \"int\"\nbits = 3\nqjl = true\n[value]\ncodebook = \"int\"\nbits = 2\n"),
             ContainsSubstring("qjl"));
  CHECK_THAT(said("[key]\ncodebook = \"turbo\"\nbits = 3\nrotation = \"no\"\n[value]\ncodebook = \"int\"\nbits = 2\n"),
             ContainsSubstring("random, hadamard"));
  CHECK_THAT(said("[key]\ncodebook = \"turbo\"\n[value]\ncodebook = \"int\"\nbits = 2\n"), ContainsSubstring("bits"));
}
