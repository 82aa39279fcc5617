#pragma once
// One finished sequence in the journal: a fixed layout, layers in ascending order, everything fp32 except moments and
// metrics.
// Private to the machine that writes it (native byte order), gone once calib.h5 is complete.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <kvq/calib/part_file.h>
#include <kvq/core/kv_shape.h>

namespace kvq {

/// Where what is in a sequence file.
struct SequenceLayout {
  KvShape shape;
  std::int64_t tokens = 0;
  bool gradients = true;
  bool metric = false;

  /// KeyGrad and ValueGrad with `gradients`, KeyMetric (a sum over metric_tokens()) with `metric`.
  enum Part { Key, Value, KeyGrad, ValueGrad, QueryMoment, KeyMetric, AttentionMass };
  bool has(Part part) const;
  std::int64_t tensor_bytes() const { return tokens * shape.width() * std::int64_t{sizeof(float)}; }
  std::int64_t moment_bytes() const {
    return std::int64_t{shape.width()} * shape.head_dim * std::int64_t{sizeof(double)};
  }
  std::int64_t mass_bytes() const { return tokens * std::int64_t{sizeof(float)}; }
  std::int64_t layer_bytes() const;
  std::int64_t part_bytes(Part part) const;
  std::int64_t offset(int layer, Part part) const;
  std::int64_t pieces() const { return std::int64_t{shape.layers} * kParts; }
  std::int64_t piece(int layer, Part part) const { return std::int64_t{layer} * kParts + part; }
  std::int64_t file_bytes() const;

 private:
  static constexpr int kParts = AttentionMass + 1;
  std::int64_t first_layer() const;
};

/// Layers come in any order; `commit` makes it a finished sequence.
class SequenceWriter {
 public:
  /// `identity`: what the journal belongs to, 64 hex digits. `sequence`: its number. Throws Io.
  SequenceWriter(const std::filesystem::path& target, const SequenceLayout& layout, const std::string& identity,
                 std::int64_t sequence);

  const SequenceLayout& layout() const { return layout_; }
  void write(int layer, SequenceLayout::Part part, const void* data);
  void commit(double loss);

 private:
  PartWriter file_;
  SequenceLayout layout_;
  std::string identity_;
  std::int64_t sequence_;
  PieceSums sums_;
};

class SequenceReader {
 public:
  /// Throws Io when the file is not this finished sequence of this journal.
  SequenceReader(const std::filesystem::path& path, const SequenceLayout& layout, const std::string& identity,
                 std::int64_t sequence);

  double loss() const { return loss_; }
  /// `out` holds exactly the part. Thread-safe. Throws Io, also where the file is damaged.
  void read(int layer, SequenceLayout::Part part, void* out) const;
  /// Reads all of a layer. Thread-safe. Throws as read().
  void check(int layer) const;

 private:
  PartReader file_;
  SequenceLayout layout_;
  PieceSums sums_;
  double loss_ = 0;
};

}  // namespace kvq
