// The part of a file that tells which tokens it was made from, and the sizes of a model's blocks.
#include <cmath>

#include <fmt/format.h>

#include <kvq/artifacts/internal/schema.h>
#include <kvq/core/error.h>
#include <kvq/core/shortened.h>

namespace kvq::schema {

namespace {
constexpr std::int64_t kMostWidth = 1 << 20;  // keeps products of two in range
constexpr double kRounding = 1e-3;            // of a loss that is zero
}  // namespace

void write_sample(const h5::Group& root, const std::string& schema, const CalibrationHeader& header) {
  const auto sequences = static_cast<std::uint64_t>(header.sequences),
             seqlen = static_cast<std::uint64_t>(header.seqlen);
  KVQ_ASSERT(header.sequences > 0 && header.seqlen > 0 && header.tokens.size() == sequences * seqlen);
  KVQ_ASSERT(header.domains.size() == sequences && header.loss.size() == sequences);
  write_provenance(root, schema, header.provenance);
  write_shape(root, header.shape);
  write_rope(root, header.rope);
  root.set("bos", header.bos);
  if (header.query_heads != "joint") root.set("query_heads", header.query_heads);
  root.write("tokens", {sequences, seqlen}, std::span(header.tokens));
  root.write_strings("domain", header.domains);
  root.write("loss", {sequences}, std::span(header.loss));
}

CalibrationHeader read_sample(const h5::Group& root, const std::string& schema) {
  CalibrationHeader header;
  header.provenance = read_provenance(root, schema);
  header.shape = read_shape(root);
  header.rope = read_rope(root, header.shape);
  header.bos = root.text("bos");
  if (header.bos != "window" && header.bos != "never")
    root.damaged("bos", fmt::format("attribute is '{}'; known: window, never", shortened(header.bos)));
  if (root.has_attribute("query_heads")) {
    header.query_heads = root.text("query_heads");
    if (header.query_heads != "joint" && header.query_heads != "mean" && header.query_heads != "max")
      root.damaged("query_heads",
                   fmt::format("attribute is '{}'; known: joint, mean, max", shortened(header.query_heads)));
  }
  const h5::Shape tokens = root.require("tokens", h5::Type::I32, {h5::kAny, h5::kAny});
  header.sequences = static_cast<std::int64_t>(tokens[0]);
  header.seqlen = static_cast<std::int64_t>(tokens[1]);
  header.tokens = root.read_ints("tokens", tokens);
  for (std::size_t index = 0; index < header.tokens.size(); ++index) {
    if (header.tokens[index] < 0)
      root.damaged("tokens", fmt::format("holds {} at {}", header.tokens[index], position(tokens, index)));
  }
  header.domains = root.read_strings("domain", tokens[0]);
  header.loss = root.read_doubles("loss", {tokens[0]});
  require_finite(root, "loss", {tokens[0]}, header.loss);
  for (std::size_t index = 0; index < header.loss.size(); ++index) {
    if (header.loss[index] < -kRounding)
      root.damaged("loss", fmt::format("holds {} at {}", header.loss[index], position({tokens[0]}, index)));
  }
  return header;
}

float read_scale(const h5::Group& group, const std::string& name) {
  const double scale = group.number_on(name, "scale");
  int exponent = 0;
  // The largest fp16 number stays finite.
  if (!(std::frexp(scale, &exponent) == 0.5 && exponent > -149 && exponent <= 112))
    group.damaged(name, fmt::format("has scale {}, a power of two is needed", scale));
  return static_cast<float>(scale);
}

void write_block_sizes(const h5::Group& root, const BlockShape& shape) {
  root.set("hidden", std::int64_t{shape.hidden});
  root.set("intermediate", std::int64_t{shape.intermediate});
}

BlockShape read_block_shape(const h5::Group& root, const KvShape& kv) {
  BlockShape shape;
  shape.kv = kv;
  for (const auto& [name, size] :
       {std::pair{"hidden", &shape.hidden}, std::pair{"intermediate", &shape.intermediate}}) {
    const std::int64_t value = root.integer(name);
    if (value < 1 || value > kMostWidth)
      root.damaged(name, fmt::format("attribute is {}, 1 to {} are possible", value, kMostWidth));
    *size = static_cast<int>(value);
  }
  if (std::int64_t{kv.heads} * kv.head_dim > kMostWidth)
    root.damaged("heads", fmt::format("attribute is {}, with head_dim = {} more than {} channels", kv.heads,
                                      kv.head_dim, kMostWidth));
  return shape;
}

}  // namespace kvq::schema
