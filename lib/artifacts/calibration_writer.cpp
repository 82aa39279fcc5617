#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include <kvq/artifacts/calibration_file.h>
#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>

namespace kvq {

namespace {

/// Bytes of a chunk before compression: enough chunks for all threads, few enough for a small index, and half of what
/// HDF5's default chunk cache holds.
constexpr std::uint64_t kChunkBytes = 512 << 10;

}  // namespace

struct CalibrationWriter::Impl {
  AtomicFile target;
  h5::File file;
  std::optional<h5::Group> root, layers;
  KvShape shape;
  std::uint64_t tokens = 0;
  int threads, next_layer = 0;
  bool gradients = true, metrics = false;

  Impl(const std::filesystem::path& path, bool force, int thread_count)
      : target(path, force), file(h5::File::create(target.temporary(), path.string())), threads(thread_count) {}
};

CalibrationWriter::CalibrationWriter(const std::filesystem::path& path, bool force, int threads)
    : impl_(std::make_unique<Impl>(path, force, threads)) {}
CalibrationWriter::~CalibrationWriter() = default;

void CalibrationWriter::write_header(const CalibrationHeader& header) {
  impl_->shape = header.shape;
  impl_->gradients = header.gradients;
  impl_->metrics = header.metrics;
  impl_->tokens = static_cast<std::uint64_t>(header.total_tokens());
  impl_->root = impl_->file.root();
  schema::write_sample(*impl_->root, "calibration", header);
  if (!header.gradients) impl_->root->set("gradients", std::int64_t{0});
  if (header.metrics) impl_->root->set("metrics", std::int64_t{1});
  impl_->layers = impl_->root->create_group("layers");
}

void CalibrationWriter::write_layer(int layer, const CalibrationLayer& data) {
  KVQ_ASSERT(impl_->layers && layer == impl_->next_layer && layer < impl_->shape.layers);
  const KvShape& shape = impl_->shape;
  const auto heads = static_cast<std::uint64_t>(shape.kv_heads), dim = static_cast<std::uint64_t>(shape.head_dim);
  const h5::Group group = impl_->layers->create_group(schema::layer_name(layer));
  const auto write = [&](const std::string& name, const ScaledHalf& tensor, bool deflate) {
    const std::uint64_t rows =
        std::clamp<std::uint64_t>(kChunkBytes / (heads * dim * sizeof(h5::Half)), 1, impl_->tokens);
    group.write(name, {impl_->tokens, heads, dim}, h5::as_halves(tensor.values), {rows, deflate, impl_->threads});
    group.set_on(name, "scale", tensor.scale);
  };
  write("key", data.key, true);
  write("value", data.value, true);
  // Gradients are noise down to the last bit: compressing them costs time and saves nothing.
  if (impl_->gradients) {
    write("key_grad", data.key_grad, false);
    write("value_grad", data.value_grad, false);
  }
  group.write("query_moment", {heads, dim, dim}, std::span(data.query_moment));
  group.write("attention_mass", {impl_->tokens}, std::span(data.attention_mass));
  if (impl_->metrics) {
    group.write("key_metric", {heads, dim, dim}, std::span(data.key_metric));
    group.write("value_metric", {heads, dim, dim}, std::span(data.value_metric));
  }
  ++impl_->next_layer;
}

void CalibrationWriter::finish() {
  KVQ_ASSERT(impl_->root && impl_->next_layer == impl_->shape.layers);
  schema::write_complete(*impl_->root);
  impl_->layers.reset();
  impl_->root.reset();
  impl_->file.close();
  impl_->target.commit();
}

}  // namespace kvq
