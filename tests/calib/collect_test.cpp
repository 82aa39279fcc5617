#include "calib/calib_support.h"

#include <cmath>
#include <map>

#include <ATen/ops/einsum.h>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/calib/attention_mass.h>
#include <kvq/calib/journal.h>

using namespace kvq;
using namespace kvq::test;

TEST_CASE("calib.h5 holds what the backward pass gives, within half precision") {
  KVQ_BOTH_WAYS();
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 24);
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  const CollectResult result = collect(*model, windows, options);
  CHECK(result.resumed == 0);
  CHECK(result.file_bytes == std::filesystem::file_size(options.output));
  CHECK(entries(folder.path()) == 1);  // the journal is gone

  const CalibrationReader reader(options.output);
  const CalibrationHeader& header = reader.header();
  CHECK(header.shape == model->config().kv);
  CHECK(header.rope == model->config().rope);
  CHECK(header.sequences == 3);
  CHECK(header.seqlen == 24);
  CHECK(header.bos == "never");
  const std::vector<std::string> domains = {"prose", "code", "prose"};
  CHECK(header.domains == domains);
  CHECK(header.loss == result.loss);
  CHECK(header.provenance.config == options.provenance.config);

  std::map<int, at::Tensor> moments;
  const std::int64_t elements = 24 * header.shape.width();
  for (std::size_t sequence = 0; sequence < windows.size(); ++sequence) {
    CHECK(
        std::equal(windows[sequence].ids.begin(), windows[sequence].ids.end(), header.tokens.begin() + 24 * sequence));
    const double loss =
        sequence_gradients(*model, windows[sequence].ids, Recompute::Layer, [&](const LayerGradients& layer) {
          const auto check = [&](const at::Tensor& expected, const std::vector<float>& all) {
            REQUIRE(all.size() == 3 * static_cast<std::size_t>(elements));
            const float* want = expected.const_data_ptr<float>();
            const float largest = expected.abs().max().item<float>();
            for (std::int64_t element = 0; element < elements; ++element) {
              const float got = all[sequence * elements + element];
              const float tolerance = std::max(std::abs(want[element]) * 0x1p-11f, largest * 1e-8f);
              if (std::abs(got - want[element]) > tolerance)
                FAIL("element " << element << ": " << got << " for " << want[element]);
            }
          };
          check(layer.key, reader.values(layer.layer, Side::Key));
          check(layer.value, reader.values(layer.layer, Side::Value));
          check(layer.key_grad, reader.gradients(layer.layer, Side::Key));
          check(layer.value_grad, reader.gradients(layer.layer, Side::Value));
          const at::Tensor query =
              layer.query.to(at::kDouble).reshape({24, header.shape.kv_heads, -1, header.shape.head_dim});
          const at::Tensor moment = at::einsum("tgqd,tgqe->gde", {query, query});
          moments[layer.layer] = moments.count(layer.layer) ? moments[layer.layer].add(moment) : moment;
        });
    CHECK(loss == header.loss[sequence]);
  }
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    const std::vector<double> got = reader.query_moment(layer);
    const double* want = moments[layer].contiguous().const_data_ptr<double>();
    for (std::size_t index = 0; index < got.size(); ++index)
      CHECK(got[index] == Approx(want[index]).epsilon(1e-4).margin(1e-5));
    const std::vector<float> mass = reader.attention_mass(layer);
    double sum = 0;
    for (float share : mass) sum += share;
    CHECK(sum == Approx(3.0 * 24 * header.shape.heads).epsilon(1e-5));
  }
}

TEST_CASE("Killed at any step, the same command ends with the bytes of an uninterrupted run") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 16);
  AtStep counter(-1, [] {});
  collect(*model, windows, options_for(*model, folder / "whole.h5"), counter);
  const std::string whole = read_bytes(folder / "whole.h5");
  REQUIRE(counter.done() == 7 * model->config().kv.layers);  // three sequences and the assembly

  const CollectOptions options = options_for(*model, folder / "killed.h5");
  for (std::int64_t step = 1; step <= counter.done(); ++step) {
    const int first = in_child([&] {
      AtStep kill(step, [] { ::raise(SIGKILL); });
      collect(*model, windows, options, kill);
    });
    CHECK(first == -SIGKILL);
    CHECK_FALSE(std::filesystem::exists(options.output));
    const CollectResult result = collect(*model, windows, options);
    CHECK(result.resumed == std::min<std::int64_t>(3, (step - 1) / (2 * model->config().kv.layers)));
    CHECK(read_bytes(options.output) == whole);
    CHECK(entries(folder.path()) == 2);  // no journal, no temporary file
    std::filesystem::remove(options.output);
  }
}

TEST_CASE("Killed again and again at arbitrary moments, a run still ends with the same bytes") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 6, 32);
  collect(*model, windows, options_for(*model, folder / "whole.h5"));
  const CollectOptions options = options_for(*model, folder / "killed.h5");
  kill_until_finished(options.output, 5, [&] { collect(*model, windows, options); });
  CHECK(read_bytes(options.output) == read_bytes(folder / "whole.h5"));
  CHECK(entries(folder.path()) == 2);
}

TEST_CASE("Killed between naming the output and removing the journal, the same command finds its work done") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  in_child([&] {
    AtStep kill(1, [] { ::raise(SIGKILL); });
    collect(*model, windows, options, kill);
  });
  const auto journal = Journal::folder_of(options.output), copy = folder / "copy";
  std::filesystem::copy(journal, copy);
  collect(*model, windows, options);
  const std::string whole = read_bytes(options.output);
  std::filesystem::rename(copy, journal);
  const CollectResult again = collect(*model, windows, options);
  CHECK(again.resumed == 2);
  CHECK(again.loss.size() == 2);
  CHECK(read_bytes(options.output) == whole);
  CHECK_FALSE(std::filesystem::exists(journal));
  // Killed while the journal was being removed: its manifest is gone, its folder and perhaps its lock are there.
  for (const bool locked : {true, false}) {
    std::filesystem::create_directory(journal);
    if (locked) std::ofstream(journal / "lock").flush();
    CHECK(collect(*model, windows, options).resumed == 2);
    CHECK(read_bytes(options.output) == whole);
    CHECK_FALSE(std::filesystem::exists(journal));
  }
  // Without a journal it is just a file that exists.
  CHECK_THROWS_WITH(collect(*model, windows, options), ContainsSubstring("--force"));
}

TEST_CASE("A finished sequence that is damaged, or stands in another's place, is computed again") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 16);
  collect(*model, windows, options_for(*model, folder / "whole.h5"));
  const std::string whole = read_bytes(folder / "whole.h5");
  const CollectOptions options = options_for(*model, folder / "x.h5");
  const auto journal = Journal::folder_of(options.output);
  const auto first = journal / "sequence-000000", second = journal / "sequence-000001";
  const auto resumed_after = [&](const std::function<void()>& damage) {
    in_child([&] {
      AtStep kill(4 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
      collect(*model, windows, options, kill);
    });
    REQUIRE(std::filesystem::exists(second));
    damage();
    const CollectResult result = collect(*model, windows, options);
    CHECK(read_bytes(options.output) == whole);
    std::filesystem::remove(options.output);
    return result.resumed;
  };
  CHECK(resumed_after([] {}) == 2);
  // Magic, identity, number, loss; then everywhere among tensors and checksums.
  const std::int64_t size = SequenceLayout{model->config().kv, 16}.file_bytes();
  std::vector<std::int64_t> places = {0, 8, 72, 80, 4096, size - 1};
  for (std::int64_t place = 5000; place < size; place += size / 9) places.push_back(place);
  for (const std::int64_t place : places) {
    INFO("byte " << place);
    CHECK(resumed_after([&] {
            std::string content = read_bytes(second);
            REQUIRE(static_cast<std::int64_t>(content.size()) == size);
            content[static_cast<std::size_t>(place)] = static_cast<char>(content[static_cast<std::size_t>(place)] ^ 4);
            write_bytes(second, content);
          }) == 1);
  }
  CHECK(resumed_after([&] { write_bytes(second, read_bytes(second).substr(0, 5000)); }) == 1);
  CHECK(resumed_after([&] { write_bytes(second, read_bytes(first)); }) == 1);
}

TEST_CASE("A journal of other settings is refused with the difference; --force starts over") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  CollectOptions options = options_for(*model, folder / "calib.h5");
  const auto stop = [&] {
    in_child([&] {
      AtStep kill(2 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
      collect(*model, windows, options, kill);
    });
  };
  stop();
  options.provenance.config = "samples = 3\nseed = 2\n";
  CHECK_THROWS_WITH(collect(*model, windows, options),
                    ContainsSubstring("seed: 1 there, 2 now") && ContainsSubstring("--force"));
  options.provenance.config = "samples = 3\nseed = 1\n";
  CHECK_THROWS_WITH(collect(*model, windows, options, quiet_context().progress, 2),
                    ContainsSubstring("threads: 1 there, 2 now"));
  CHECK_THROWS_WITH(collect(*model, random_windows(*model, 2, 8, 9), options), ContainsSubstring("tokens:"));
  options.provenance.config = "samples = 3\nseed = 2\n";
  options.force = true;
  CHECK(collect(*model, windows, options).resumed == 0);
  CHECK(entries(folder.path()) == 1);
}

TEST_CASE("With --force an existing output stays until the new one is complete") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  CollectOptions options = options_for(*model, folder / "calib.h5");
  write_bytes(options.output, "precious");
  CHECK_THROWS_WITH(collect(*model, windows, options), ContainsSubstring("--force"));
  CHECK(entries(folder.path()) == 1);
  options.force = true;
  in_child([&] {
    AtStep kill(2 * model->config().kv.layers + 1, [] { ::raise(SIGKILL); });
    collect(*model, windows, options, kill);
  });
  CHECK(read_bytes(options.output) == "precious");
  CHECK(collect(*model, windows, options).resumed == 1);
  CHECK(read_bytes(options.output) != "precious");
}

TEST_CASE("Two runs do not share a journal") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 1, 8);
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  std::string message;
  AtStep second(1, [&] {
    try {
      collect(*model, windows, options);
    } catch (const Error& error) {
      message = error.what();
      CHECK(error.kind() == ErrorKind::Io);
    }
  });
  collect(*model, windows, options, second);
  CHECK_THAT(message, ContainsSubstring("another run") && ContainsSubstring("calib.h5.journal"));
}

TEST_CASE("An input that changes during the run ends it, and what was computed from it does not count") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 8);
  CollectOptions options = options_for(*model, folder / "calib.h5");
  const auto text = folder / "text.txt";
  write_bytes(text, "one");
  const InputWatch inputs({text});
  options.inputs = &inputs;
  AtStep change(2 * model->config().kv.layers + 1, [&] { write_bytes(text, "three"); });
  try {
    collect(*model, windows, options, change);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::Io);
    CHECK_THAT(error.what(), ContainsSubstring("text.txt") && ContainsSubstring("changed during the run"));
  }
  CHECK_FALSE(std::filesystem::exists(options.output));
  options.inputs = nullptr;
  CHECK(collect(*model, windows, options).resumed == 1);
}

TEST_CASE("Interrupted runs keep their journal") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 8);
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  CancelToken cancel;
  AtStep stop(2 * model->config().kv.layers + 1, [&] { cancel.cancel(); });
  RunContext context{quiet_context().log, stop, cancel, 1};
  CHECK_THROWS_AS(collect_calibration(*model, windows, kDomains, options, context), Error);
  CHECK(collect(*model, windows, options).resumed == 1);
}

TEST_CASE("A folder that is no journal is left alone") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 1, 8);
  const CollectOptions options = options_for(*model, folder / "calib.h5");
  std::filesystem::create_directory(folder / "calib.h5.journal");
  write_bytes(folder / "calib.h5.journal/diary.txt", "dear diary");
  CHECK_THROWS_WITH(collect(*model, windows, options), ContainsSubstring("not a folder of ours"));
  CHECK(entries(folder / "calib.h5.journal") == 1);
  std::filesystem::remove_all(folder / "calib.h5.journal");
  write_bytes(folder / "calib.h5.journal", "a file");
  CHECK_THROWS_WITH(collect(*model, windows, options), ContainsSubstring("in the way"));
}

TEST_CASE("A token that the model does not know is a mismatch") {
  TempDir folder;
  const auto model = tiny_model();
  std::vector<Window> windows = random_windows(*model, 1, 8);
  windows[0].ids[3] = model->config().vocab;
  CHECK_THROWS_WITH(collect(*model, windows, options_for(*model, folder / "calib.h5")),
                    ContainsSubstring("do not belong together"));
  CHECK(entries(folder.path()) == 0);
}
