#include "calib/calib_support.h"

#include <cmath>
#include <limits>
#include <map>

#include <kvq/artifacts/weight_fisher_file.h>
#include <kvq/calib/collect_weights.h>

using namespace kvq;
using namespace kvq::test;

namespace {

CollectResult collect_squares(Model& model, const std::vector<Window>& windows, const CollectOptions& options,
                              Progress& progress = quiet_context().progress, int threads = 1) {
  const CancelToken cancel;
  RunContext context{quiet_context().log, progress, cancel, threads};
  return collect_weight_fisher(model, windows, kDomains, options, context);
}

}  // namespace

TEST_CASE("The file of weight gradients holds sqrt(Σ g²) over the sequences, within half precision") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 24);
  const CollectOptions options = options_for(*model, folder / "fisher.h5");
  const CollectResult result = collect_squares(*model, windows, options);
  CHECK(result.resumed == 0);
  CHECK(result.file_bytes == std::filesystem::file_size(options.output));
  CHECK(entries(folder.path()) == 1);

  std::map<std::pair<int, BlockMatrix>, at::Tensor> sums;
  std::vector<double> losses;
  for (const Window& window : windows) {
    losses.push_back(sequence_gradients(
        *model, window.ids, Recompute::Layer,
        [&](const LayerGradients& layer) {
          for (const BlockMatrix matrix : kBlockMatrices) {
            const at::Tensor square = layer.weight_grad[static_cast<std::size_t>(matrix)].to(at::kDouble).square();
            at::Tensor& sum = sums[{layer.layer, matrix}];
            sum = sum.defined() ? sum.add(square) : square;
          }
        },
        {.weights = true}));
  }
  const WeightFisherReader reader(options.output);
  CHECK(reader.shape() == model->config().blocks());
  CHECK(reader.header().loss == losses);
  CHECK(result.loss == losses);
  CHECK(reader.header().sequences == 3);
  CHECK(reader.header().provenance.config == options.provenance.config);
  for (const auto& [place, sum] : sums) {
    const std::vector<float> roots = reader.roots(place.first, place.second);
    const at::Tensor wanted = sum.sqrt().contiguous();
    REQUIRE(static_cast<std::int64_t>(roots.size()) == wanted.numel());
    const double largest = wanted.max().item<double>();
    for (std::size_t index = 0; index < roots.size(); ++index) {
      const double want = wanted.const_data_ptr<double>()[index];
      if (std::abs(roots[index] - want) > std::max(want * 0x1p-10, largest * 1e-7))
        FAIL("layer " << place.first << " " << block_matrix_name(place.second) << " " << index << ": " << roots[index]
                      << " for " << want);
    }
  }
}

TEST_CASE("Killed at any step, the sums over weights end with the bytes of an uninterrupted run") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 16);
  AtStep counter(-1, [] {});
  collect_squares(*model, windows, options_for(*model, folder / "whole.h5"), counter);
  const std::string whole = read_bytes(folder / "whole.h5");
  REQUIRE(counter.done() == 7 * model->config().kv.layers);

  const CollectOptions options = options_for(*model, folder / "killed.h5");
  for (std::int64_t step = 1; step <= counter.done(); ++step) {
    const int first = in_child([&] {
      AtStep kill(step, [] { ::raise(SIGKILL); });
      collect_squares(*model, windows, options, kill);
    });
    CHECK(first == -SIGKILL);
    CHECK_FALSE(std::filesystem::exists(options.output));
    const CollectResult result = collect_squares(*model, windows, options);
    CHECK(result.resumed == std::min<std::int64_t>(3, (step - 1) / (2 * model->config().kv.layers)));
    CHECK(read_bytes(options.output) == whole);
    CHECK(entries(folder.path()) == 2);  // no journal, no temporary file
    std::filesystem::remove(options.output);
  }
}

TEST_CASE("Killed again and again at arbitrary moments, the sums still end with the same bytes") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 5, 24);
  collect_squares(*model, windows, options_for(*model, folder / "whole.h5"));
  const CollectOptions options = options_for(*model, folder / "killed.h5");
  const auto journal = Journal::folder_of(options.output);
  kill_until_finished(
      options.output, 7, [&] { collect_squares(*model, windows, options); },
      [&] {  // never more than the sums so far, those before them, and what is being written
        std::error_code ignored;
        if (std::filesystem::exists(journal, ignored)) CHECK(entries(journal) <= 5);
      });
  CHECK(read_bytes(options.output) == read_bytes(folder / "whole.h5"));
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("A journal of keys and values is none of weights") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  const CollectOptions options = options_for(*model, folder / "x.h5");
  in_child([&] {
    AtStep kill(2 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
    collect(*model, windows, options, kill);
  });
  CHECK_THROWS_WITH(collect_squares(*model, windows, options),
                    ContainsSubstring("collects: keys and values there, weights now"));
  CollectOptions forced = options;
  forced.force = true;
  CHECK(collect_squares(*model, windows, forced).resumed == 0);
  CHECK(entries(folder.path()) == 1);  // nothing is left of the other run
}

TEST_CASE("Damaged sums are not gone on with") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  const CollectOptions options = options_for(*model, folder / "x.h5");
  in_child([&] {
    AtStep kill(2 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
    collect_squares(*model, windows, options, kill);
  });
  const auto sums = folder / "x.h5.journal/sums-000000";
  REQUIRE(std::filesystem::exists(sums));
  const std::string bytes = read_bytes(sums);
  const auto manifest = folder / "x.h5.journal/manifest";
  const std::string whole_manifest = read_bytes(manifest);
  const auto resumed_with = [&](const std::string& content) {
    std::filesystem::create_directories(folder / "x.h5.journal");
    write_bytes(manifest, whole_manifest);
    write_bytes(sums, content);
    const CollectResult result = collect_squares(*model, windows, options);
    const std::string file = read_bytes(options.output);
    std::filesystem::remove(options.output);
    return std::pair(result.resumed, file);
  };
  const std::pair<std::int64_t, std::string> good = resumed_with(bytes);
  CHECK(good.first == 1);
  const std::string& whole = good.second;
  // Magic, identity, count, loss, sums and their checksums.
  for (const std::size_t place : {std::size_t{0}, std::size_t{8}, std::size_t{72}, std::size_t{80}, std::size_t{88},
                                  bytes.size() / 3, bytes.size() / 2, bytes.size() - 9, bytes.size() - 1}) {
    INFO("byte " << place);
    std::string bad = bytes;
    bad[place] = static_cast<char>(bad[place] ^ 4);
    CHECK(resumed_with(bad) == std::pair(std::int64_t{0}, whole));
  }
  CHECK(resumed_with(bytes.substr(0, bytes.size() - 4)) == std::pair(std::int64_t{0}, whole));
}
