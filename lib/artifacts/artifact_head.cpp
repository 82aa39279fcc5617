#include <kvq/artifacts/artifact_head.h>

#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <kvq/artifacts/internal/h5.h>
#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq {

ArtifactHead read_artifact_head(const std::filesystem::path& path) {
  const h5::File file = h5::File::open(path);
  const h5::Group root = file.root();
  if (!root.has_attribute("kvq_schema"))
    fail(ErrorKind::Format,
         fmt::format("{}: is an HDF5 file, but not one of kvq's (no attribute 'kvq_schema')", path.string()));
  ArtifactHead head;
  head.schema = root.text("kvq_schema");
  constexpr const char* kKinds[] = {"calibration", "thresholds", "quantizer", "weight-fisher", "weights"};
  if (std::find(std::begin(kKinds), std::end(kKinds), head.schema) == std::end(kKinds)) {
    root.damaged("kvq_schema",
                 fmt::format("attribute is '{}'; known: {}", shortened(head.schema), fmt::join(kKinds, ", ")));
  }
  head.version = root.text("schema_version");
  head.producer = root.text("producer");
  return head;
}

}  // namespace kvq
