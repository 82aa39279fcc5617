#include <kvq/cache/side_rotation.h>

#include <kvq/quant/vector_side.h>

namespace kvq {

namespace {

/// `heads` vectors a token, as many after each other of each codec.
template <class Turn>
void turn(const std::vector<std::shared_ptr<const TurboCodec>>& codecs, int heads, std::span<float> x, Turn apply) {
  const auto dim = static_cast<std::size_t>(codecs.front()->dim());
  const std::size_t group = static_cast<std::size_t>(heads) / codecs.size() * dim;
  for (std::size_t begin = 0; begin < x.size(); begin += group)
    apply(*codecs[begin / group % codecs.size()], x.subspan(begin, group));
}

}  // namespace

HeadRotation query_rotation(const SideQuantizer& quantizer, int heads) {
  std::vector<float> scale;
  for (int head = 0; head < heads; ++head) {
    const auto from = quantizer.rotation_scale.begin() + head / (heads / quantizer.kv_heads) * quantizer.head_dim;
    scale.insert(scale.end(), from, from + quantizer.head_dim);
  }
  return {scale, heads, quantizer.head_dim};
}

std::optional<SideRotation> SideRotation::of(const SideQuantizer& quantizer, Side side, int heads) {
  const SideRecipe& recipe = quantizer.recipe;
  SideRotation result;
  result.heads_ = heads;
  if (recipe.rotation != Rotation::None) {
    result.of_cache_.emplace(quantizer.rotation_scale, quantizer.kv_heads, quantizer.head_dim);
    result.of_queries_.emplace(query_rotation(quantizer, heads));
    return result;
  }
  if (recipe.codebook != CodebookKind::Turbo || (side == Side::Key && !recipe.post_rope)) return std::nullopt;
  for (const auto& codec : head_codecs(quantizer))
    result.turbo_.push_back(std::dynamic_pointer_cast<const TurboCodec>(codec));
  if (result.turbo_.front()->has_sketch()) return std::nullopt;
  return result;
}

void SideRotation::forward(std::span<float> x) const {
  if (of_cache_) return of_cache_->forward(x);
  turn(turbo_, static_cast<int>(turbo_.size()), x, [](const TurboCodec& codec, auto rows) { codec.rotate(rows); });
}

void SideRotation::forward_queries(std::span<float> x) const {
  if (of_queries_) return of_queries_->forward(x);
  turn(turbo_, heads_, x, [](const TurboCodec& codec, auto rows) { codec.rotate(rows); });
}

void SideRotation::inverse_sums(std::span<float> x) const {
  if (of_queries_) return of_queries_->inverse(x);
  turn(turbo_, heads_, x, [](const TurboCodec& codec, auto rows) { codec.unrotate(rows); });
}

}  // namespace kvq
