// Not a test by itself: k-means on arrays that scripts/reference/compare_fit.py writes and judges against scikit-learn.

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <kvq/core/parallel.h>
#include <kvq/fit/kmeans1d.h>

#include "support/catch.h"
#include "support/skip.h"

namespace {

/// fp32, little-endian, nothing else.
std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<float> values(static_cast<std::size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

}  // namespace

TEST_CASE("k-means of the arrays in KVQ_KMEANS_JOBS", "[.files]") {
  const char* jobs = std::getenv("KVQ_KMEANS_JOBS");
  if (jobs == nullptr) KVQ_SKIP("KVQ_KMEANS_JOBS names no file; scripts/reference/compare_fit.py sets it");
  nlohmann::json list = nlohmann::json::parse(std::ifstream(jobs));
  for (nlohmann::json& job : list) {
    const std::vector<float> values = read_floats(job["values"]), weights = read_floats(job["weights"]);
    const auto start = std::chrono::steady_clock::now();
    const kvq::KMeans1dResult result =
        kvq::kmeans1d(values, weights, job["clusters"], job.value("threads", kvq::available_cores()));
    job["seconds"] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    job["centroids"] = result.centroids;
    job["error"] = result.error;
  }
  std::ofstream(std::string(jobs) + ".done") << list.dump();
}
