// Not part of a test run: `test_vector "[claims]"` prints the tables of docs/claims-coding.md.
//
// Data: what KVQ_CLAIMS_DIR holds, files NAME.d<dim>.f32, raw floats [rows, dim] as scripts/reference/vector_claims.py
// writes them. Files whose names agree up to the first '.' are one group, over which errors are averaged;
// KVQ_CLAIMS_ONLY: files whose names begin so. Codecs are trained on the first four fifths of the rows and judged on
// the rest.
//
// Columns: bits per value of the rows (tables apart); squared error over energy; bits that scalarB would need for that
// error (log error interpolated between B = 1 … 8) minus the bits that were used: what pays is above 0.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include <kvq/coding/byte_io.h>
#include <kvq/vector/vector_recipe.h>

#include "support/catch.h"
#include "support/skip.h"
#include "vector/formula_matrix.h"
#include "vector/turbo_support.h"

using namespace kvq;
using namespace kvq::test;

namespace {

struct Rows {
  int dim = 0;
  std::vector<float> x;
};

struct Cost {
  double bits = 0, error = 0;
};

const std::vector<std::string> kJudged = {"scalar2:scale=max",
                                          "scalar3:scale=max",
                                          "scalar4:scale=max",
                                          "delta2",
                                          "delta3",
                                          "delta4",
                                          "delta3:anchor=16",
                                          "delta3:threshold=0.5",
                                          "delta3:abits=6",
                                          "scalar2:lowrank=4",
                                          "scalar2:lowrank=8",
                                          "scalar3:lowrank=4",
                                          "scalar3:lowrank=8",
                                          "scalar3:lowrank=4,fbits=4",
                                          "scalar4:lowrank=4",
                                          "scalar4:lowrank=8",
                                          "scalar3:entropy=huffman",
                                          "scalar3:entropy=rans",
                                          "scalar4:entropy=huffman",
                                          "scalar4:entropy=rans",
                                          "scalar3:levels=even,entropy=rans",
                                          "scalar4:levels=even,entropy=rans",
                                          "scalar5:levels=even,entropy=rans"};

/// Behind pq with as many subspaces as make 2 bits per value.
const std::vector<std::string> kProducts = {"", ",norm"};

Cost judge(const std::string& recipe, const Rows& rows) {
  const std::size_t dim = static_cast<std::size_t>(rows.dim), count = rows.x.size() / dim, trained = count * 4 / 5;
  VectorSample sample;
  sample.x = std::span<const float>(rows.x).first(trained * dim);
  const auto judged = std::span<const float>(rows.x).subspan(trained * dim);
  const auto codec = make_codec(parse_vector_recipe(recipe), rows.dim, sample);
  const auto bytes = encoded(*codec, judged);
  const std::vector<float> zeros(judged.size(), 0.0f);
  return {8.0 * static_cast<double>(bytes.size()) / static_cast<double>(judged.size()),
          squared_error(judged, decoded(*codec, bytes, judged.size())) / squared_error(judged, zeros)};
}

/// Bits are averaged, and logarithms of errors.
Cost judge_all(const std::string& recipe, const std::vector<Rows>& group) {
  Cost cost;
  for (const Rows& rows : group) {
    const Cost one = judge(recipe, rows);
    cost.bits += one.bits / static_cast<double>(group.size());
    cost.error += std::log(one.error) / static_cast<double>(group.size());
  }
  cost.error = std::exp(cost.error);
  return cost;
}

double scalar_bits(const std::vector<Cost>& curve, double error) {
  std::size_t at = 1;
  while (at + 1 < curve.size() && curve[at].error > error) ++at;
  const double share = std::log(error / curve[at - 1].error) / std::log(curve[at].error / curve[at - 1].error);
  return curve[at - 1].bits + share * (curve[at].bits - curve[at - 1].bits);
}

void print_group(const std::string& name, const std::vector<Rows>& group) {
  std::printf(
      "\n%s (%zu of [%zu, %d])\n| recipe | bits per value | error / energy | bits gained |\n|---|---|---|---|\n",
      name.c_str(), group.size(), group[0].x.size() / static_cast<std::size_t>(group[0].dim), group[0].dim);
  std::vector<Cost> curve;
  const auto line = [](const std::string& recipe, const Cost& cost, double gained) {
    std::printf("| `%s` | %.3f | %.5f | %+.2f |\n", recipe.c_str(), cost.bits, cost.error, gained);
    std::fflush(stdout);
  };
  for (int bits = 1; bits <= 8; ++bits) {
    curve.push_back(judge_all("scalar" + std::to_string(bits), group));
    if (bits <= 5) line("scalar" + std::to_string(bits), curve.back(), 0.0);
  }
  std::vector<std::string> recipes = kJudged;
  for (const std::string& words : kProducts)
    recipes.push_back("pq:m=" + std::to_string(group[0].dim / 4) + ",bits=8" + words);
  for (const std::string& recipe : recipes) {
    const Cost cost = judge_all(recipe, group);
    line(recipe, cost, scalar_bits(curve, cost.error) - cost.bits);
  }
}

std::map<std::string, std::vector<Rows>> groups_in(const std::string& folder, const std::string& only) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::map<std::string, std::vector<Rows>> groups;
  for (const auto& file : files) {
    const std::string name = file.filename().string();
    const auto dim = name.rfind(".d");
    if (!name.starts_with(only) || !name.ends_with(".f32") || dim == std::string::npos) continue;
    Rows rows;
    rows.dim = std::atoi(name.c_str() + dim + 2);
    rows.x.resize(std::filesystem::file_size(file) / 4);
    std::ifstream(file, std::ios::binary)
        .read(reinterpret_cast<char*>(rows.x.data()), static_cast<std::streamsize>(4 * rows.x.size()));
    groups[name.substr(0, name.find('.'))].push_back(std::move(rows));
  }
  return groups;
}

}  // namespace

TEST_CASE("Claims of delta, low rank, entropy coding and product quantization", "[.][claims]") {
  const char* only = std::getenv("KVQ_CLAIMS_ONLY");
  const char* folder = std::getenv("KVQ_CLAIMS_DIR");
  if (!folder) KVQ_SKIP("KVQ_CLAIMS_DIR names no folder");
  for (const auto& [name, group] : groups_in(folder, only ? only : "")) print_group(name, group);
}

TEST_CASE("Time of a million 128-vectors, codecs with tables", "[.bench]") {
  constexpr int kDim = 128, kRows = 1 << 14;
  const std::vector<float> x = normal_rows(kDim, kRows, 91);
  std::vector<float> y(x.size());
  for (const char* recipe : {"scalar2", "scalar3", "scalar4", "delta3", "scalar3:lowrank=4", "scalar4:entropy=huffman",
                             "scalar4:entropy=rans", "pq:m=32,bits=8"}) {
    const auto codec = make_codec(parse_vector_recipe(recipe), kDim, VectorSample{x, {}, {}, 1});
    std::vector<std::byte> bytes;
    const auto seconds = [&](const auto& run) {  // the least of five: one takes milliseconds, a busy machine as many
      double least = 1e9;
      for (int time = 0; time < 5; ++time) {
        const auto start = std::chrono::steady_clock::now();
        run();
        least = std::min(
            least, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() * (1 << 20) / kRows);
      }
      return least;
    };
    const double encode = seconds([&] {
      bytes.clear();
      codec->encode(x, bytes);
    });
    const double decode = seconds([&] { codec->decode(bytes, y); });
    std::printf("| %s | %.2f | %.2f |\n", recipe, encode, decode);
  }
}
