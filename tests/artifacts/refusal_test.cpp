// Damaged, foreign, newer and inconsistent artifacts: one clear message each, never a crash.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <limits>

#include "artifacts/sample_files.h"
#include "support/catch.h"
#include "support/skip.h"
#include "support/temp_dir.h"

#include <kvq/core/error.h>
#include <kvq/core/rng.h>

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// A sample file of each kind with its reader.
struct Kind {
  const char* name;
  std::function<void(const std::filesystem::path&)> write;
  Read read;
};
const Kind kKinds[] = {
    {"quantizer", [](const auto& path) { write_quantizer(path, sample_quantizer(), true); }, read_whole_quantizer},
    {"thresholds", [](const auto& path) { write_thresholds(path, sample_thresholds(), true); }, read_whole_thresholds},
    {"calibration", [](const auto& path) { write_sample_calibration(path, sample_calibration_header(), 1, true); },
     read_whole_calibration}};

/// The message for a sample file after a change; empty when it is accepted.
std::string after(const Kind& kind, const std::function<void(hid_t)>& change) {
  TempDir folder;
  const auto path = folder / "x.h5";
  kind.write(path);
  edit(path, change);
  const std::string message = refusal(kind.read, path);
  if (!message.empty()) CHECK_THAT(message, ContainsSubstring(path.string()));
  return message;
}
std::string after_removal(const Kind& kind, const char* object) {
  return after(kind, [&](hid_t file) { H5Ldelete(file, object, H5P_DEFAULT); });
}

}  // namespace

TEST_CASE("A file cut anywhere is refused") {
  TempDir folder;
  for (const Kind& kind : kKinds) {
    kind.write(folder / "whole.h5");
    const std::string bytes = read_bytes(folder / "whole.h5");
    REQUIRE(refusal(kind.read, folder / "whole.h5").empty());
    const std::size_t step = std::string(kind.name) == "quantizer" ? 1 : 97;
    for (std::size_t size = 0; size < bytes.size(); size += step) {
      write_bytes(folder / "cut.h5", std::string_view(bytes).substr(0, size));
      const std::string message = refusal(kind.read, folder / "cut.h5");
      if (message.find("cut.h5") == std::string::npos) FAIL(kind.name << " cut at " << size << ": '" << message << "'");
    }
  }
}

TEST_CASE("A large calibration file cut at every 512 bytes of its head and at every dataset is refused") {
  TempDir folder;
  write_sample_calibration(folder / "whole.h5", sample_calibration_header(4, 20000));
  const std::string bytes = read_bytes(folder / "whole.h5");
  std::vector<std::size_t> cuts;
  for (std::size_t size = 0; size < (64 << 10); size += 512) cuts.push_back(size);
  for (std::size_t part = 1; part < 60; ++part) cuts.push_back(bytes.size() * part / 60);
  cuts.push_back(bytes.size() - 1);
  for (std::size_t size : cuts) {
    write_bytes(folder / "cut.h5", std::string_view(bytes).substr(0, size));
    if (refusal(read_whole_calibration, folder / "cut.h5").empty()) FAIL("cut at " << size << " was accepted");
  }
}

TEST_CASE("Flipped bytes never crash a reader") {
#ifdef __SANITIZE_ADDRESS__
  KVQ_SKIP("HDF5 loses memory when it meets damage, which the leak checker calls an error");
#endif
  TempDir folder;
  Rng rng(1);
  for (const Kind& kind : kKinds) {
    kind.write(folder / "whole.h5");
    const std::string bytes = read_bytes(folder / "whole.h5");
    for (int round = 0; round < 400; ++round) {
      std::string damaged = bytes;
      for (int flips = 0; flips < 1 + round % 4; ++flips)
        damaged[rng.below(damaged.size())] = static_cast<char>(rng.below(256));
      write_bytes(folder / "flipped.h5", damaged);
      refusal(kind.read, folder / "flipped.h5");  // accepted or refused, both are fine
    }
  }
}

TEST_CASE("A damaged object is one error and no noise at the end of the process") {
#ifdef __SANITIZE_ADDRESS__
  KVQ_SKIP("HDF5 loses memory when it meets damage, which the leak checker reports on stderr");
#endif
  TempDir folder;
  const auto path = folder / "q.h5", log = folder / "stderr";
  write_quantizer(path, sample_quantizer(), false);
  std::string bytes = read_bytes(path);
  const std::size_t object = bytes.find("OHDR", bytes.size() / 2);  // a header with a checksum
  REQUIRE(object != std::string::npos);
  bytes[object + 10] = static_cast<char>(bytes[object + 10] ^ 1);
  write_bytes(path, bytes);
  std::cout.flush();
  const pid_t child = ::fork();
  if (child == 0) {
    const int file = ::open(log.c_str(), O_WRONLY | O_CREAT, 0666);
    ::dup2(file, STDERR_FILENO);
    bool refused = false;
    try {
      read_quantizer(path);
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::Format && std::string(error.what()).find("checksum") != std::string::npos;
    }
    std::exit(refused ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK(read_bytes(log) == "");
}

TEST_CASE("What is no artifact is named as what it is") {
  TempDir folder;
  const auto path = folder / "x.h5";
  CHECK_THAT(refusal(read_whole_quantizer, folder / "missing.h5"), ContainsSubstring("No such file"));
  CHECK_THAT(refusal(read_whole_quantizer, folder.path()), ContainsSubstring("is a folder"));
  write_bytes(path, "");
  CHECK_THAT(refusal(read_whole_quantizer, path), ContainsSubstring("is empty"));
  write_bytes(path, "GGUF\3\0\0\0 and so on and so forth");
  CHECK_THAT(refusal(read_whole_quantizer, path), ContainsSubstring("not an HDF5 file"));
  H5Fclose(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  CHECK_THAT(refusal(read_whole_quantizer, path), ContainsSubstring("not one of kvq's"));
  write_thresholds(path, sample_thresholds(), true);
  CHECK_THAT(refusal(read_whole_quantizer, path),
             ContainsSubstring("is a thresholds file, a quantizer file is needed"));
}

TEST_CASE("Schema versions: a newer major version is refused with both numbers, a newer minor version is read") {
  for (const Kind& kind : kKinds) {
    const std::string newer = after(kind, [](hid_t file) { replace_attribute(file, "schema_version", "2.0"); });
    CHECK_THAT(newer, ContainsSubstring("2.0") && ContainsSubstring("1.x") && ContainsSubstring("newer"));
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "schema_version", "0.9"); }),
               ContainsSubstring("older"));
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "schema_version", "1"); }),
               ContainsSubstring("major.minor"));
    CHECK(after(kind, [](hid_t file) {
            replace_attribute(file, "schema_version", "1.9");
            replace_attribute(file, "added_later", "something");
            const hid_t group = H5Gcreate2(file, "added", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
            H5Gclose(group);
          }) == "");
  }
}

TEST_CASE("A file that was never finished is refused") {
  for (const Kind& kind : kKinds) {
    CHECK_THAT(after(kind, [](hid_t file) { H5Adelete(file, "complete"); }), ContainsSubstring("incomplete"));
    CHECK_THAT(after(kind, [](hid_t file) { replace_attribute(file, "complete", std::int64_t{0}); }),
               ContainsSubstring("incomplete"));
  }
}

TEST_CASE("Calibrations say whether sequences begin with a BOS token in words that are known") {
  for (const char* word : {"", "auto", "Window"}) {
    CHECK_THAT(after(kKinds[2], [&](hid_t file) { replace_attribute(file, "bos", word); }),
               ContainsSubstring("known: window, never"));
  }
  CHECK(after(kKinds[2], [](hid_t file) { replace_attribute(file, "bos", "never"); }).empty());
}

TEST_CASE("Missing objects and attributes are named") {
  const Kind &quantizer = kKinds[0], &thresholds = kKinds[1], &calibration = kKinds[2];
  for (const char* name : {"/layers", "/layers/02", "/layers/01/key", "/layers/01/key/lower",
                           "/layers/00/value/centroids", "/fingerprints"}) {
    CHECK_THAT(after_removal(quantizer, name), ContainsSubstring(name) && ContainsSubstring("is missing"));
  }
  for (const char* name : {"/sets/01", "/sets/00/key_post", "/sets/00/value/outlier_rate", "/sets/01/key/minimum"}) {
    CHECK_THAT(after_removal(thresholds, name), ContainsSubstring(name) && ContainsSubstring("is missing"));
  }
  for (const char* name : {"/tokens", "/domain", "/loss", "/layers/02", "/layers/01/key_grad",
                           "/layers/01/query_moment", "/layers/00/attention_mass"}) {
    CHECK_THAT(after_removal(calibration, name), ContainsSubstring(name) && ContainsSubstring("is missing"));
  }
  for (const char* name : {"model_sha256", "config", "parents", "layers", "head_dim", "rope_theta", "recipe_toml"}) {
    CHECK_THAT(after(quantizer, [&](hid_t file) { H5Adelete(file, name); }),
               ContainsSubstring(name) && ContainsSubstring("is missing"));
  }
  CHECK_THAT(after(calibration, [](hid_t file) { H5Adelete_by_name(file, "/layers/01/value", "scale", H5P_DEFAULT); }),
             ContainsSubstring("scale") && ContainsSubstring("is missing"));
}

TEST_CASE("Metrics that are missing, or no metrics at all, are refused by name") {
  TempDir folder;
  const auto path = folder / "c.h5";
  CalibrationHeader header = sample_calibration_header();
  header.gradients = false, header.metrics = true;
  const auto damaged = [&](const std::function<void(CalibrationLayer&)>& damage,
                           const std::function<void(hid_t)>& change) {
    CalibrationWriter writer(path, true, 1);
    writer.write_header(header);
    for (int layer = 0; layer < kShape.layers; ++layer) {
      CalibrationLayer data = sample_calibration_layer(header, layer);
      if (layer == 1) damage(data);
      writer.write_layer(layer, data);
    }
    writer.finish();
    if (change) edit(path, change);
    return refusal(read_whole_calibration, path);
  };
  const auto nothing = [](CalibrationLayer&) {};
  CHECK(damaged(nothing, nullptr) == "");
  CHECK_THAT(damaged(nothing, [](hid_t file) { H5Ldelete(file, "/layers/02/value_metric", H5P_DEFAULT); }),
             ContainsSubstring("/layers/02/value_metric") && ContainsSubstring("is missing"));
  CHECK_THAT(damaged(nothing, [](hid_t file) { replace_attribute(file, "gradients", std::int64_t{1}); }),
             ContainsSubstring("key_grad") && ContainsSubstring("is missing"));
  CHECK_THAT(damaged(nothing, [](hid_t file) { replace_attribute(file, "metrics", std::int64_t{2}); }),
             ContainsSubstring("0 or 1"));
  CHECK_THAT(damaged([](CalibrationLayer& data) { data.key_metric[36 + 6 + 2] += 0.5; }, nullptr),
             ContainsSubstring("/layers/01/key_metric") && ContainsSubstring("not symmetric at [1, 1, 2]"));
  CHECK_THAT(damaged([](CalibrationLayer& data) { data.value_metric[7] = -1; }, nullptr),
             ContainsSubstring("-1 at [0, 1, 1]") && ContainsSubstring("diagonal"));
  CHECK_THAT(damaged([](CalibrationLayer& data) { data.value_metric[3] = NAN; }, nullptr),
             ContainsSubstring("nan at [0, 0, 3]"));
  // Queries that are not zero change their attention with the key somewhere; an output projection may be zero.
  const auto clear = [](std::vector<double>& block) { std::fill(block.begin(), block.end(), 0.0); };
  CHECK_THAT(damaged([&](CalibrationLayer& data) { clear(data.key_metric); }, nullptr),
             ContainsSubstring("/layers/01/key_metric") && ContainsSubstring("is zero everywhere"));
  CHECK(damaged([&](CalibrationLayer& data) { clear(data.key_metric), clear(data.query_moment); }, nullptr) == "");
  CHECK(damaged([&](CalibrationLayer& data) { clear(data.value_metric); }, nullptr) == "");
}

TEST_CASE("Numbers that no model gives are refused with dataset and position") {
  TempDir folder;
  const auto path = folder / "c.h5";
  CalibrationHeader header = sample_calibration_header();
  const auto damaged = [&](const std::function<void(CalibrationLayer&)>& damage) {
    CalibrationWriter writer(path, true, 1);
    writer.write_header(header);
    for (int layer = 0; layer < kShape.layers; ++layer) {
      CalibrationLayer data = sample_calibration_layer(header, layer);
      if (layer == 1) damage(data);
      writer.write_layer(layer, data);
    }
    writer.finish();
    return refusal(read_whole_calibration, path);
  };
  CHECK(damaged([](CalibrationLayer&) {}) == "");
  CHECK_THAT(damaged([](CalibrationLayer& data) { data.query_moment[7] *= -1; }),
             ContainsSubstring("/layers/01/query_moment") && ContainsSubstring("at [0, 1, 1], on its diagonal"));
  CHECK(damaged([](CalibrationLayer& data) { data.query_moment[8] *= -1; }) == "");
  CHECK_THAT(damaged([](CalibrationLayer& data) { data.attention_mass[3] = -1; }),
             ContainsSubstring("/layers/01/attention_mass") && ContainsSubstring("-1 at [3]"));
  CHECK_THAT(damaged([](CalibrationLayer& data) { data.attention_mass[3] += 20; }),
             ContainsSubstring("sums to 1.5 for each query"));
  header.loss[1] = -0.5;
  CHECK_THAT(damaged([](CalibrationLayer&) {}), ContainsSubstring("'/loss' holds -0.5 at [1]"));

  const auto changed = [](const char* name, std::size_t index, float value) {
    return after(kKinds[1], [&](hid_t file) { overwrite(file, name, index, value); });
  };
  CHECK_THAT(changed("/sets/00/key/maximum", 2, 0.0f),
             ContainsSubstring("'/sets/00/key/upper' is 6 at [0, 0, 2], above 'maximum' = 0"));
  CHECK_THAT(changed("/sets/01/value/minimum", 2, 22.0f),
             ContainsSubstring("'/sets/01/value/minimum' is 22 at [0, 0, 2], above 'lower' = 21"));
  CHECK_THAT(changed("/sets/01/value/minimum", 2, 1000.0f), ContainsSubstring("above 'maximum'"));
}

TEST_CASE("Shapes and types are refused with what was found and what is needed") {
  const Kind &quantizer = kKinds[0], &calibration = kKinds[2];
  const auto replaced = [](const Kind& kind, const char* name, hid_t type, std::vector<hsize_t> shape) {
    return after(kind, [&](hid_t file) { replace_dataset(file, name, type, shape); });
  };
  CHECK_THAT(replaced(quantizer, "/layers/00/key/lower", H5T_IEEE_F32LE, {6, 2}),
             ContainsSubstring("[6, 2]") && ContainsSubstring("[2, 6]"));
  CHECK_THAT(replaced(quantizer, "/layers/00/key/lower", H5T_IEEE_F64LE, {2, 6}),
             ContainsSubstring("float64") && ContainsSubstring("float32"));
  CHECK_THAT(replaced(quantizer, "/layers/00/key/lower", H5T_IEEE_F32BE, {2, 6}), ContainsSubstring("big-endian"));
  // 2 bits want 4 centroids per codebook.
  CHECK_THAT(replaced(quantizer, "/layers/00/key/centroids", H5T_IEEE_F32LE, {2, 8}),
             ContainsSubstring("[2, 8]") && ContainsSubstring("[2, 4]"));
  CHECK_THAT(replaced(calibration, "/tokens", H5T_STD_I64LE, {2, 5}),
             ContainsSubstring("int64") && ContainsSubstring("int32"));
  CHECK_THAT(replaced(calibration, "/loss", H5T_IEEE_F64LE, {3}), ContainsSubstring("[3]") && ContainsSubstring("[2]"));
  CHECK_THAT(replaced(calibration, "/layers/01/attention_mass", H5T_IEEE_F32LE, {9}),
             ContainsSubstring("[9]") && ContainsSubstring("[10]"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "head_dim", std::int64_t{7}); }),
             ContainsSubstring("[2, 7]"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "layers", std::int64_t{0}); }),
             ContainsSubstring("layers"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "heads", std::int64_t{3}); }),
             ContainsSubstring("multiple of kv_heads"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "layers", "three"); }),
             ContainsSubstring("integer"));
  CHECK_THAT(after(calibration, [](hid_t file) { replace_attribute(file, "layers", std::int64_t{2}); }),
             ContainsSubstring("'/layers/02'"));
}

TEST_CASE("A dataset that claims more than the file holds is refused before memory is taken") {
  const std::string message = after(kKinds[2], [](hid_t file) {
    REQUIRE(H5Ldelete(file, "/tokens", H5P_DEFAULT) >= 0);
    const hsize_t shape[] = {hsize_t{1} << 40, 1024}, chunk[] = {1024, 1024};
    const hid_t space = H5Screate_simple(2, shape, nullptr);
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, 2, chunk);
    const hid_t id = H5Dcreate2(file, "/tokens", H5T_STD_I32LE, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    REQUIRE(id >= 0);
    H5Dclose(id);
    H5Pclose(creation);
    H5Sclose(space);
  });
  CHECK_THAT(message, ContainsSubstring("/tokens") && ContainsSubstring("not wholly stored"));
}

TEST_CASE("Links into other files are not followed") {
  const std::string message = after(kKinds[0], [](hid_t file) {
    REQUIRE(H5Ldelete(file, "/layers/00/key/lower", H5P_DEFAULT) >= 0);
    REQUIRE(H5Lcreate_external("elsewhere.h5", "/lower", file, "/layers/00/key/lower", H5P_DEFAULT, H5P_DEFAULT) >= 0);
  });
  CHECK_THAT(message, ContainsSubstring("external link"));
}

TEST_CASE("Values that make no sense are refused with dataset and position") {
  const Kind &quantizer = kKinds[0], &thresholds = kKinds[1], &calibration = kKinds[2];
  const auto changed = [](const Kind& kind, const char* name, std::size_t index, float value) {
    return after(kind, [&](hid_t file) { overwrite(file, name, index, value); });
  };
  CHECK_THAT(changed(quantizer, "/layers/01/key/lower", 7, kNaN),
             ContainsSubstring("/layers/01/key/lower") && ContainsSubstring("[1, 1]"));
  CHECK_THAT(changed(quantizer, "/layers/01/key/upper", 0, kInf), ContainsSubstring("inf at [0, 0]"));
  CHECK_THAT(changed(quantizer, "/layers/02/value/centroids", 1, -3.0f),
             ContainsSubstring("not sorted") && ContainsSubstring("[0, 1]"));
  CHECK_THAT(changed(quantizer, "/layers/02/value/decoded", 1, kNaN), ContainsSubstring("decoded"));
  CHECK_THAT(changed(quantizer, "/layers/02/key/decoded", 1, 0.125f), ContainsSubstring("/layers/02/key/decoded") &&
                                                                          ContainsSubstring("0.125 at [0, 1]") &&
                                                                          ContainsSubstring("Q-Norm only"));
  const Kind with_qnorm = {"quantizer",
                           [](const auto& path) { write_quantizer(path, sample_quantizer("nuq2:qnorm"), true); },
                           read_whole_quantizer};
  CHECK(changed(with_qnorm, "/layers/02/value/decoded", 1, -0.25f) == "");
  CHECK_THAT(changed(with_qnorm, "/layers/02/value/decoded", 1, 9.0f),
             ContainsSubstring("/layers/02/value/decoded") && ContainsSubstring("not sorted"));
  CHECK_THAT(changed(quantizer, "/layers/01/key/lower", 3, 99.0f),
             ContainsSubstring("above") && ContainsSubstring("[0, 3]"));
  CHECK_THAT(changed(thresholds, "/sets/00/key_post/upper", 13, kNaN), ContainsSubstring("[1, 0, 1]"));
  CHECK_THAT(changed(thresholds, "/sets/00/key/lower", 0, 1000.0f), ContainsSubstring("above"));
  CHECK_THAT(changed(calibration, "/layers/00/attention_mass", 4, -kInf), ContainsSubstring("attention_mass"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "rope_theta", -1.0); }),
             ContainsSubstring("rope_theta"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "rope_kind", "yarn"); }),
             ContainsSubstring("yarn"));
  CHECK_THAT(after(quantizer, [](hid_t file) { replace_attribute(file, "recipe_toml", "bits = 4"); }),
             ContainsSubstring("recipe_toml"));
  CHECK_THAT(after(thresholds, [](hid_t file) { replace_attribute(file, "cap", 1.5); }), ContainsSubstring("cap"));
}

TEST_CASE("A NaN among the keys of a calibration is refused with its position") {
  TempDir folder;
  const auto path = folder / "c.h5";
  const CalibrationHeader header = sample_calibration_header();
  {
    CalibrationWriter writer(path, false, 1);
    writer.write_header(header);
    for (int layer = 0; layer < kShape.layers; ++layer) {
      CalibrationLayer data = sample_calibration_layer(header, layer);
      if (layer == 1) data.key.values[2 * 12 + 6 + 5] = 0x7e00;
      if (layer == 2) data.value_grad.values[0] = 0xfc00;
      writer.write_layer(layer, data);
    }
    writer.finish();
  }
  const CalibrationReader reader(path);
  CHECK_NOTHROW(reader.values(0, Side::Key));
  CHECK_THROWS_WITH(reader.values(1, Side::Key),
                    ContainsSubstring("/layers/01/key") && ContainsSubstring("nan at [2, 1, 5]"));
  CHECK_THROWS_WITH(reader.gradients(2, Side::Value), ContainsSubstring("-inf at [0, 0, 0]"));
}
