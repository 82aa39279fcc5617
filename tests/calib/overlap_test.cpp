// The journal written by a thread of its own, as it is where the model is computed on a GPU; and a calibration there.
#include <sys/resource.h>

#include <cmath>

#include "calib/calib_support.h"
#include "support/gpu.h"

#include <kvq/artifacts/calibration_file.h>

using namespace kvq;
using namespace kvq::test;

namespace {

CollectOptions overlapped(const Model& model, const std::filesystem::path& output) {
  CollectOptions options = options_for(model, output);
  options.overlap = true;
  return options;
}

double relative_error(const std::vector<float>& found, const std::vector<float>& expected) {
  REQUIRE(found.size() == expected.size());
  double difference = 0, size = 0;
  for (std::size_t index = 0; index < found.size(); ++index) {
    difference += (double{found[index]} - expected[index]) * (double{found[index]} - expected[index]);
    size += double{expected[index]} * expected[index];
  }
  return std::sqrt(difference / size);
}

void check_calibration(Device device) {
  TempDir folder;
  const std::filesystem::path path = KVQ_SOURCE_DIR "/tests/data/tiny/gqa-untied/model.gguf";
  set_compute_threads(1);
  for (const Dtype dtype : {Dtype::Fp32, Dtype::Bf16}) {
    for (const bool forward_only : {false, true}) {
      INFO(dtype_name(dtype) << (forward_only ? ", forward only" : ""));
      const auto other = load_model(path, {.dtype = dtype, .device = device}), cpu = load_model(path, {});
      const std::vector<Window> windows = random_windows(*cpu, 4, 64);
      const auto settings = [&](const char* name, bool overlap) {
        CollectOptions options = options_for(*cpu, folder / name);
        options.force = true, options.overlap = overlap;
        options.gradients = !forward_only;
        options.metrics = true;
        return options;
      };
      collect(*cpu, windows, settings("cpu.h5", false));
      by_operations(device, [&] {
        CollectOptions options = settings("other.h5", true);
        options.dtype = dtype;
        collect(*other, windows, options);
        options.output = folder / "resumed.h5", options.force = false;
        CancelToken cancel;
        AtStep stop((forward_only ? 2 : 4) * other->config().kv.layers + 1, [&] { cancel.cancel(); });
        RunContext context{quiet_context().log, stop, cancel, 1};
        CHECK_THROWS_AS(collect_calibration(*other, windows, kDomains, options, context), Error);
        CHECK(collect(*other, windows, options).resumed == 2);
        CHECK(read_bytes(options.output) == read_bytes(folder / "other.h5"));
        std::filesystem::remove(options.output);
      });
      const CalibrationReader found(folder / "other.h5"), expected(folder / "cpu.h5");
      const double close = dtype == Dtype::Fp32 ? 1e-3 : 0.1;
      for (int layer = 0; layer < cpu->config().kv.layers; ++layer) {
        const auto floats = [](const std::vector<double>& x) { return std::vector<float>(x.begin(), x.end()); };
        for (const Side side : kSides) {
          CHECK(relative_error(found.values(layer, side), expected.values(layer, side)) <= close);
          if (!forward_only)
            CHECK(relative_error(found.gradients(layer, side), expected.gradients(layer, side)) <= 2 * close);
          CHECK(relative_error(floats(found.metric(layer, side)), floats(expected.metric(layer, side))) <= 2 * close);
        }
        CHECK(relative_error(found.attention_mass(layer), expected.attention_mass(layer)) <= close);
        CHECK(relative_error(floats(found.query_moment(layer)), floats(expected.query_moment(layer))) <= close);
      }
    }
  }
}

}  // namespace

TEST_CASE("Overlapped or not, with metrics, without gradients: the same bytes") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 5, 24);
  for (const bool gradients : {true, false}) {
    for (const bool metrics : {false, true}) {
      INFO(gradients << metrics);
      CollectOptions plain = options_for(*model, folder / "plain.h5"),
                     overlap = overlapped(*model, folder / "overlap.h5");
      for (CollectOptions* options : {&plain, &overlap})
        options->gradients = gradients, options->metrics = metrics, options->force = true;
      collect(*model, windows, plain);
      collect(*model, windows, overlap);
      CHECK(read_bytes(overlap.output) == read_bytes(plain.output));
    }
  }
}

TEST_CASE("Overlapped, killed at any step and at any moment: the same bytes in the end") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 4, 24);
  AtStep counter(-1, [] {});
  collect(*model, windows, options_for(*model, folder / "whole.h5"), counter);
  const std::string whole = read_bytes(folder / "whole.h5");
  const CollectOptions options = overlapped(*model, folder / "killed.h5");
  for (std::int64_t step = 1; step <= counter.done(); step += 2) {
    CHECK(in_child([&] {
            AtStep kill(step, [] { ::raise(SIGKILL); });
            collect(*model, windows, options, kill);
          }) == -SIGKILL);
    int outcome = -1;
    outcome = in_child([&] { collect(*model, windows, options); });  // this process stays without threads
    CHECK(outcome == kDone);
    CHECK(read_bytes(options.output) == whole);
    std::filesystem::remove(options.output);
  }
  kill_until_finished(options.output, 7, [&] { collect(*model, windows, options); });
  CHECK(read_bytes(options.output) == whole);
}

TEST_CASE("Overlapped, a full disk ends the run with its error and keeps what is finished") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 6, 16);
  collect(*model, windows, options_for(*model, folder / "whole.h5"));
  const CollectOptions options = overlapped(*model, folder / "calib.h5");
  const SequenceLayout layout{model->config().kv, 16};
  const int outcome = in_child([&] {
    // In the sixth sequence; no more than eight layers wait then, so the third is finished.
    AtStep full(10 * model->config().kv.layers + 1, [&] {
      std::signal(SIGXFSZ, SIG_IGN);
      const rlimit size{static_cast<rlim_t>(layout.file_bytes() / 2), static_cast<rlim_t>(layout.file_bytes() / 2)};
      ::setrlimit(RLIMIT_FSIZE, &size);
    });
    collect(*model, windows, options, full);
  });
  CHECK(outcome == kIoError);
  CHECK_FALSE(std::filesystem::exists(options.output));
  const CollectResult result = collect(*model, windows, options);
  CHECK(result.resumed >= 2);
  CHECK(result.resumed < 6);
  CHECK(read_bytes(options.output) == read_bytes(folder / "whole.h5"));
}

TEST_CASE("Overlapped and interrupted, what was finished counts") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 3, 8);
  const CollectOptions options = overlapped(*model, folder / "calib.h5");
  CancelToken cancel;
  AtStep stop(2 * model->config().kv.layers + 1, [&] { cancel.cancel(); });
  RunContext context{quiet_context().log, stop, cancel, 1};
  CHECK_THROWS_AS(collect_calibration(*model, windows, kDomains, options, context), Error);
  CHECK(collect(*model, windows, options).resumed == 1);
}

TEST_CASE("Overlapped, an input that changed keeps its sequence from counting") {
  TempDir folder;
  const auto model = tiny_model();
  const std::vector<Window> windows = random_windows(*model, 2, 8);
  write_bytes(folder / "text.txt", "before");
  const InputWatch watch({folder / "text.txt"});
  CollectOptions options = overlapped(*model, folder / "calib.h5");
  options.inputs = &watch;
  AtStep change(1, [&] { write_bytes(folder / "text.txt", "something else"); });
  CHECK_THROWS_WITH(collect(*model, windows, options, change), ContainsSubstring("changed during the run"));
  options.inputs = nullptr;
  CHECK(collect(*model, windows, options).resumed == 0);
}

KVQ_TEST_OF_OPERATIONS("A calibration elsewhere is the CPU's within rounding, resumed it has the same bytes",
                       check_calibration)
