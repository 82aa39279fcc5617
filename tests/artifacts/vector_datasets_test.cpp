// Quantizer files of codecs of head vectors.
#include "artifacts/sample_files.h"
#include "quant/codec_support.h"
#include "support/catch.h"
#include "support/temp_dir.h"

#include <kvq/artifacts/recipe_toml.h>
#include <kvq/core/error.h>
#include <kvq/quant/footprint.h>
#include <kvq/quant/recipe_traits.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr KvShape kCodecShape{2, 4, 2, 16};

QuantizerFile codec_file(const std::string& recipe) {
  QuantizerFile file = sample_quantizer("int4");
  const RopeParams rope = file.quantizer.rope;
  file.quantizer = codec_quantizer(recipe, kCodecShape);
  file.quantizer.rope = rope;
  for (LayerQuantizer& layer : file.quantizer.layers) {
    for (const Side which : kSides) {
      SideQuantizer& side = layer.side(which);
      side.exponent = 3;
      for (int book = 0; book < codebook_count(side.recipe, 2, 16); ++book)
        side.codebooks.push_back(uniform_codebook(side.recipe.bits));
    }
  }
  return file;
}

void overwrite_byte(hid_t file, const char* dataset, std::size_t index, std::uint8_t value) {
  const hid_t set = H5Dopen2(file, dataset, H5P_DEFAULT), space = H5Dget_space(set);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
  H5Dread(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
  bytes.at(index) = value;
  H5Dwrite(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bytes.data());
  H5Sclose(space);
  H5Dclose(set);
}

}  // namespace

TEST_CASE("Tables of codecs and sizes of blocks come back as they were written") {
  TempDir folder;
  for (const std::string recipe :
       {"scalar3", "delta3:anchor=16,abits=5,share=head", "pq:m=4,bits=3,lowrank=2", "pq:m=4,bits=3,share=layer",
        "scalar4:entropy=rans", "scalar4:entropy=huffman,share=head", "K=delta2:rope=post/V=int4:value=token"}) {
    INFO(recipe);
    const auto path = folder / (slug(parse_recipe(recipe)) + ".h5");
    QuantizerFile written = codec_file(recipe);
    for (LayerQuantizer& layer : written.quantizer.layers) layer.key.block_bytes = 812.25;
    write_quantizer(path, written, false);
    const QuantizerFile read = read_quantizer(path);
    CHECK(read.quantizer.recipe == written.quantizer.recipe);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      for (const Side which : kSides) {
        const SideQuantizer& a = read.quantizer.layers[layer].side(which);
        const SideQuantizer& b = written.quantizer.layers[layer].side(which);
        CHECK((a.vector_tables == b.vector_tables));
        CHECK(a.exponent == 3);
        if (which == Side::Key)
          CHECK(a.block_bytes ==
                (recipe.find("entropy") != std::string::npos || recipe.find("abits") != std::string::npos ? 812.25
                                                                                                          : 0.0));
      }
    }
    CHECK(table_bytes(read.quantizer) == table_bytes(written.quantizer));
  }
}

TEST_CASE("Damaged tables of codecs are refused by name") {
  TempDir folder;
  const auto refused = [&](const std::string& recipe, const std::function<void(hid_t)>& change) {
    const auto path = folder / "damaged.h5";
    write_quantizer(path, codec_file(recipe), true);
    edit(path, change);
    return refusal(read_whole_quantizer, path);
  };
  const char* const tables = "/layers/00/key/codec_tables";
  // Bytes 2 and up are levels in fp32: the upper byte of the second one, which makes it huge.
  CHECK_THAT(refused("scalar3", [&](hid_t file) { overwrite_byte(file, tables, 9, 0x7f); }),
             ContainsSubstring(tables) && ContainsSubstring("levels"));
  CHECK_THAT(refused("scalar3", [&](hid_t file) { overwrite_byte(file, tables, 1, 0xff); }),
             ContainsSubstring(tables) && ContainsSubstring("2^"));
  CHECK_THAT(refused("pq:m=4,bits=3", [&](hid_t file) { overwrite_byte(file, tables, 5, 0xff); }),
             ContainsSubstring(tables));
  CHECK_THAT(refused("scalar3", [&](hid_t file) { replace_dataset(file, tables, H5T_STD_U8LE, {7}); }),
             ContainsSubstring("codec_starts"));
  CHECK_THAT(refused("scalar3", [&](hid_t file) { H5Ldelete(file, tables, H5P_DEFAULT); }),
             ContainsSubstring("codec_tables"));
  CHECK_THAT(refused("pq:m=4,bits=3",
                     [](hid_t file) { replace_dataset(file, "/layers/01/value/codec_starts", H5T_STD_I32LE, {3}); }),
             ContainsSubstring("/layers/01/value/codec_starts"));
  CHECK_THAT(refused("pq:m=4,bits=3",
                     [](hid_t file) { replace_dataset(file, "/layers/01/value/codec_starts", H5T_STD_I32LE, {2}); }),
             ContainsSubstring("/layers/01/value/codec_starts"));
  CHECK_THAT(refused("scalar4:entropy=rans",
                     [](hid_t file) {
                       const hid_t group = H5Gopen2(file, "/layers/00/key", H5P_DEFAULT);
                       H5Adelete(group, "block_bytes");
                       H5Gclose(group);
                     }),
             ContainsSubstring("block_bytes"));
}

TEST_CASE("The long form of a codec holds all of its words and reads back") {
  for (const std::string recipe :
       {"scalar3", "delta3:anchor=16", "K=pq:m=8,norm/V=delta2:abits=4", "scalar3:lowrank=4,page=64,flush=128",
        "K=scalar4:entropy=rans,rope=post,recent=8/V=nuq3-1%", "pq:share=layer,weights=none"}) {
    INFO(recipe_to_toml(parse_recipe(recipe)));
    CHECK(recipe_from_toml(recipe_to_toml(parse_recipe(recipe)), "test") == parse_recipe(recipe));
  }
  const std::string text = recipe_to_toml(parse_recipe("delta3:anchor=16"));
  for (const char* line :
       {"codebook = \"vector\"", "codec = \"delta3:scale=norm,levels=fit,anchor=16,threshold=1,abits=3\"", "bits = 3",
        "range = \"none\"", "share = \"layer\""})
    CHECK_THAT(text, ContainsSubstring(line));
  const std::string shortest =
      "[key]\ncodebook = \"vector\"\ncodec = \"pq:m=8\"\n[value]\ncodebook = \"vector\"\ncodec = "
      "\"delta2\"\nbits = 2\n";
  CHECK(recipe_from_toml(shortest, "test") == parse_recipe("K=pq:m=8/V=delta2"));
  const auto said = [](const std::string& key) -> std::string {
    try {
      recipe_from_toml("[key]\n" + key + "[value]\ncodebook = \"int\"\nbits = 2\n", "test");
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK_THAT(said("codebook = \"vector\"\nbits = 3\n"), ContainsSubstring("codec") && ContainsSubstring("missing"));
  CHECK_THAT(said("codebook = \"vector\"\ncodec = \"delta3\"\nbits = 4\n"), ContainsSubstring("4 bits beside"));
  CHECK_THAT(said("codebook = \"vector\"\ncodec = \"zip\"\n"), ContainsSubstring("unknown method 'zip'"));
  CHECK_THAT(said("codebook = \"int\"\nbits = 3\ncodec = \"delta3\"\n"), ContainsSubstring("is for codebook vector"));
}
