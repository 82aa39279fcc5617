#include <kvq/cuda/side_rounding.h>

#include <algorithm>
#include <limits>
#include <vector>

#include <kvq/cache/code_rows.h>
#include <kvq/quant/channel_affine.h>
#include <kvq/quant/head_rotation.h>
#include <kvq/quant/lane_encoder.h>
#include <kvq/quant/rounding_recipe.h>

namespace kvq {

namespace {

/// Empty arrays stay null.
template <typename T>
void upload_some(DeviceArray<T>& to, const std::vector<T>& from) {
  if (!from.empty()) to.upload(from);
}

}  // namespace

bool rounds_blocks(const SideRecipe& side) { return LaneEncoder::serves(side) || side.rotation != Rotation::None; }

bool has_own_rows(const LayerQuantizer& layer) {
  return std::ranges::any_of(kSides, [&](Side side) {
    return layer.side(side).recipe.widths == Widths::Pair || layer.side(side).recipe.levels != 0;
  });
}

std::vector<float> padded_codebooks(const SideQuantizer& side) {
  std::vector<float> levels;
  const auto pad = [&levels] {
    while (levels.size() % cuda::kRowLevels != 0) levels.push_back(0.0f);
  };
  for (const Codebook& book : side.codebooks) {
    levels.insert(levels.end(), book.decoded.begin(), book.decoded.end());
    if (side.recipe.widths != Widths::Pair) pad();
  }
  pad();
  return levels;
}

std::vector<cuda::RowInfo> row_infos(const SideQuantizer& side, const layout::SideShape& shape) {
  std::vector<cuda::RowInfo> infos(static_cast<std::size_t>(shape.width()));
  if (side.recipe.levels != 0) return infos;  // found by the number of levels
  const CodeRows rows(side, shape);
  for (int channel = 0; channel < shape.width(); ++channel) {
    const CodeRows::Row& row = rows.row(channel);
    int first_level = 0;
    if (side.recipe.widths == Widths::Pair) {
      for (const int bits : width_choices(side.recipe)) first_level += bits < row.bits ? 1 << bits : 0;
    }
    const auto head_bytes = static_cast<int>(rows.head_bytes());
    infos[static_cast<std::size_t>(channel)] =
        cuda::RowInfo::of(row.offset - channel / shape.head_dim * head_bytes, row.bits, first_level);
  }
  return infos;
}

SideRounding::SideRounding(const SideQuantizer& side) : icm_(side.recipe.rounding.icm) {
  std::vector<float> inverses;
  for (std::size_t channel = 0; channel < side.lower.size(); ++channel)
    inverses.push_back(inverse_of(channel_affine(side.lower[channel], side.upper[channel]).scale));
  upload_some(inverse_, inverses);
  if (side.recipe.rotation != Rotation::None) {
    const HeadRotation rotation(side.rotation_scale, side.kv_heads, side.head_dim);
    rotation_.upload(rotation.forward_factors());
    rotation_block_ = rotation.block();
  }
  const LaneEncoder encoder(side, SimdLevel::Portable);
  const LaneEncoder::Tables& tables = encoder.tables();
  std::vector<float> boundaries, decoded;
  std::vector<std::int32_t> most;
  for (const LaneEncoder::Book& book : tables.books) {
    most.push_back(static_cast<std::int32_t>(book.boundaries.size()));
    boundaries.insert(boundaries.end(), book.boundaries.begin(), book.boundaries.end());
    decoded.insert(decoded.end(), book.decoded.begin(), book.decoded.end());
    boundaries.resize(most.size() * cuda::kRowLevels, std::numeric_limits<float>::infinity());
    decoded.resize(most.size() * cuda::kRowLevels, 0.0f);
  }
  books_ = static_cast<std::int32_t>(most.size());
  boundaries_.upload(boundaries), decoded_.upload(decoded), most_boundaries_.upload(most);
  book_.upload(tables.book_of_channel), order_.upload(tables.order);
  upload_some(updates_, tables.updates);
  upload_some(hessian_, tables.hessian);
  upload_some(inverse_diagonal_, tables.inverse_diagonal);
}

cuda::RoundTables SideRounding::tables() const {
  cuda::RoundTables tables;
  tables.rounds = true;
  tables.inverse = inverse_.data();
  tables.rotation = rotation_.data(), tables.rotation_block = rotation_block_;
  tables.boundaries = boundaries_.data(), tables.decoded = decoded_.data();
  tables.most_boundaries = most_boundaries_.data(), tables.books = books_, tables.book = book_.data();
  tables.order = order_.data(), tables.updates = updates_.data();
  tables.hessian = hessian_.data(), tables.inverse_diagonal = inverse_diagonal_.data();
  tables.icm = icm_;
  return tables;
}

}  // namespace kvq
