#include <kvq/quant/lane_encoder.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include <kvq/core/half.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/scaled_half.h>

namespace kvq {

namespace {

void check_size(const char* what, std::size_t size, std::size_t wanted) {
  if (size != wanted)
    fail(ErrorKind::Mismatch,
         fmt::format("quantizer has {} numbers in its {}; its recipe needs {}", size, what, wanted));
}

}  // namespace

bool LaneEncoder::serves(const SideRecipe& recipe) {
  return recipe.rounding.uses_blocks() || recipe.widths == Widths::Pair || recipe.levels != 0;
}

LaneEncoder::LaneEncoder(const SideQuantizer& quantizer, SimdLevel level)
    : loops_(lane_loops(level)),
      per_token_(quantizer.recipe.range == RangeKind::Online),
      feedback_(quantizer.recipe.rounding.feedback),
      icm_(quantizer.recipe.rounding.icm),
      kv_heads_(quantizer.kv_heads),
      head_dim_(quantizer.head_dim),
      to_stored_(power_of_two(-quantizer.exponent)),
      from_stored_(power_of_two(quantizer.exponent)) {
  const SideRecipe& recipe = quantizer.recipe;
  const auto width = static_cast<std::size_t>(quantizer.width()), dim = static_cast<std::size_t>(head_dim_);
  for (const Codebook& book : quantizer.codebooks) tables_.books.push_back({book.boundaries(), book.decoded});

  tables_.book_of_channel.assign(width, 0);
  if (recipe.widths == Widths::Pair) {
    const std::vector<int> choices = width_choices(recipe);
    check_size("widths", quantizer.widths.size(), width);
    check_size("list of codebooks", tables_.books.size(), choices.size());
    for (std::size_t choice = 0; choice < choices.size(); ++choice)
      check_size("codebook", tables_.books[choice].decoded.size(), std::size_t{1} << choices[choice]);
    for (std::size_t channel = 0; channel < width; ++channel) {
      const auto found = std::find(choices.begin(), choices.end(), quantizer.widths[channel]);
      if (found == choices.end())
        fail(ErrorKind::Mismatch, fmt::format("quantizer has a channel of {} bits; its recipe gives {} to {}",
                                              quantizer.widths[channel], choices.front(), choices.back()));
      tables_.book_of_channel[channel] = static_cast<std::uint8_t>(found - choices.begin());
    }
  } else {
    for (std::size_t channel = 0; channel < width && tables_.books.size() > 1; ++channel)
      tables_.book_of_channel[channel] = static_cast<std::uint8_t>(channel / dim);
  }

  if (!recipe.rounding.uses_blocks()) {
    for (std::size_t channel = 0; channel < width; ++channel)
      tables_.order.push_back(static_cast<std::int32_t>(channel % dim));
    return;
  }
  tables_.order = quantizer.feedback.order;
  check_size("coding order", tables_.order.size(), width);
  for (std::size_t head = 0; head < width; head += dim) {
    std::vector<std::uint8_t> seen(dim, 0);
    for (std::size_t position = head; position < head + dim; ++position) {
      const std::int32_t channel = tables_.order[position];
      if (channel < 0 || channel >= head_dim_ || seen[static_cast<std::size_t>(channel)]++ != 0)
        fail(ErrorKind::Mismatch, "quantizer has a coding order that does not name every channel of a head once");
    }
  }
  if (feedback_) {
    tables_.updates = quantizer.feedback.updates;
    check_size("feedback matrix", tables_.updates.size(), width * dim);
  }
  if (icm_ == 0) return;
  check_size("Fisher matrix", quantizer.feedback.hessian.size(), width * dim);
  for (std::size_t head = 0; head < width; head += dim) {
    for (std::size_t row = 0; row < dim; ++row) {
      const float* source =
          quantizer.feedback.hessian.data() + (head + static_cast<std::size_t>(tables_.order[head + row])) * dim;
      for (std::size_t column = 0; column < dim; ++column)
        tables_.hessian.push_back(source[static_cast<std::size_t>(tables_.order[head + column])]);
      tables_.inverse_diagonal.push_back(1.0f / tables_.hessian[(head + row) * dim + row]);
      if (!std::isfinite(tables_.inverse_diagonal.back()))
        fail(ErrorKind::Mismatch, "quantizer has a Fisher matrix whose diagonal is not positive");
    }
  }
}

/// Zero, scale and inverse of the lanes: those of the tokens, or one channel's in every lane.
struct LaneEncoder::Lanes {
  float zero[kLanes] = {}, scale[kLanes] = {}, inverse[kLanes] = {};

  void set_tokens(const Batch& batch) {
    std::copy_n(batch.zero, batch.tokens, zero);
    std::copy_n(batch.scale, batch.tokens, scale);
    std::copy_n(batch.inverse, batch.tokens, inverse);
  }
  void set_channel(const Batch& batch, int channel) {
    std::fill_n(zero, kLanes, batch.zero[channel]);
    std::fill_n(scale, kLanes, batch.scale[channel]);
    std::fill_n(inverse, kLanes, batch.inverse[channel]);
  }
};

class LaneEncoder::Head {
 public:
  Head(const LaneEncoder& encoder, const Batch& batch, std::int64_t first_token, Scratch& scratch, Lanes& lanes,
       int head)
      : encoder_(encoder),
        batch_(batch),
        first_token_(first_token),
        scratch_(scratch),
        lanes_(lanes),
        dim_(encoder.head_dim_),
        first_channel_(head * dim_),
        order_(encoder.tables_.order.data() + first_channel_) {}

  void load() {
    const auto width = static_cast<std::ptrdiff_t>(encoder_.kv_heads_) * dim_;
    for (int position = 0; position < dim_; ++position) {
      const int channel = first_channel_ + order_[position];
      float* lane_values = scratch_.compensated.data() + position * kLanes;
      std::uint32_t masked = 0;
      for (int token = 0; token < batch_.tokens; ++token) lane_values[token] = batch_.x[token * width + channel];
      std::fill(lane_values + batch_.tokens, lane_values + kLanes, 0.0f);
      if (batch_.mask != nullptr) {
        for (int token = 0; token < batch_.tokens; ++token)
          masked |= (batch_.mask[token * width + channel] != 0 ? 1u : 0u) << token;
      }
      scratch_.masked[static_cast<std::size_t>(position)] = masked;
    }
  }

  void feed_back() {
    const float* updates = encoder_.tables_.updates.data() + static_cast<std::ptrdiff_t>(first_channel_) * dim_;
    float* values = scratch_.compensated.data();
    alignas(64) float errors[kLaneBlock * kLanes];
    for (int begin = 0; begin < dim_; begin += kLaneBlock) {
      const int end = std::min(begin + kLaneBlock, dim_);
      for (int position = begin; position < end; ++position) {
        const float* restored = round(position, values + position * kLanes);
        if (!encoder_.feedback_) continue;
        float* error = errors + (position - begin) * kLanes;
        for (int lane = 0; lane < kLanes; ++lane) error[lane] = values[position * kLanes + lane] - restored[lane];
        encoder_.loops_.subtract(updates + position * dim_ + position + 1, dim_, error, 1, end - position - 1,
                                 values + (position + 1) * kLanes);
      }
      if (encoder_.feedback_)
        encoder_.loops_.subtract(updates + begin * dim_ + end, dim_, errors, end - begin, dim_ - end,
                                 values + end * kLanes);
    }
  }

  void descend() {
    const float* hessian = encoder_.tables_.hessian.data() + static_cast<std::ptrdiff_t>(first_channel_) * dim_;
    const float* inverse_diagonal = encoder_.tables_.inverse_diagonal.data() + first_channel_;
    float *residual = scratch_.residual.data(), *restored = scratch_.restored.data();
    std::fill_n(residual, dim_ * kLanes, 0.0f);
    load();  // the compensated values have served; what is needed again are those to come near to
    for (int index = 0; index < dim_ * kLanes; ++index)
      scratch_.compensated[static_cast<std::size_t>(index)] =
          restored[index] - scratch_.compensated[static_cast<std::size_t>(index)];
    for (int begin = 0; begin < dim_; begin += kLaneBlock)
      encoder_.loops_.subtract(hessian + begin * dim_, dim_, scratch_.compensated.data() + begin * kLanes,
                               std::min(kLaneBlock, dim_ - begin), dim_, residual);
    for (int pass = 0; pass < encoder_.icm_; ++pass) {
      for (int end = dim_; end > 0;) {
        const int begin = (end - 1) / kLaneBlock * kLaneBlock;
        descend_block(hessian, inverse_diagonal, begin, end, residual);
        end = begin;
      }
    }
  }

  void store(std::uint8_t* codes, std::uint16_t* exact) const {
    const auto width = static_cast<std::ptrdiff_t>(encoder_.kv_heads_) * dim_;
    for (int position = 0; position < dim_; ++position) {
      const int channel = first_channel_ + order_[position];
      const std::uint32_t masked = scratch_.masked[static_cast<std::size_t>(position)];
      for (int token = 0; token < batch_.tokens; ++token) {
        const bool outlier = (masked >> token & 1u) != 0;
        codes[token * width + channel] =
            outlier ? 0
                    : static_cast<std::uint8_t>(scratch_.codes[static_cast<std::size_t>(position * kLanes + token)]);
        if (outlier)
          exact[token * width + channel] = scratch_.exact[static_cast<std::size_t>(position * kLanes + token)];
      }
    }
  }

 private:
  /// Rounds what stands in the lanes of one coding position; returns what is restored.
  const float* round(int position, const float* x) {
    const int channel = first_channel_ + order_[position];
    if (!encoder_.per_token_) lanes_.set_channel(batch_, channel);
    const Book& book = encoder_.tables_.books[static_cast<std::size_t>(encoder_.book_of(channel))];
    float* restored = scratch_.restored.data() + position * kLanes;
    encoder_.loops_.round(x, lanes_.zero, lanes_.inverse, lanes_.scale, book.boundaries.data(),
                          static_cast<int>(book.boundaries.size()), book.decoded.data(),
                          scratch_.codes.data() + position * kLanes, restored);
    for (std::uint32_t left = scratch_.masked[static_cast<std::size_t>(position)]; left != 0; left &= left - 1) {
      const int lane = std::countr_zero(left);
      const std::uint16_t half = float_to_half(x[lane] * encoder_.to_stored_);
      if ((half & 0x7fffu) >= 0x7c00u)
        throw ExactOverflow(first_token_ + lane, channel, x[lane], kHalfMax * encoder_.from_stored_);
      scratch_.exact[static_cast<std::size_t>(position * kLanes + lane)] = half;
      restored[lane] = half_to_float(half) * encoder_.from_stored_;
    }
    return restored;
  }

  /// Channels of one block from last to first; the rest of the residual learns of their changes afterwards, in the
  /// same order.
  void descend_block(const float* hessian, const float* inverse_diagonal, int begin, int end, float* residual) {
    alignas(64) float changes[kLaneBlock * kLanes];
    bool any_changed = false;
    for (int position = end - 1; position >= begin; --position) {
      const float* now = scratch_.restored.data() + position * kLanes;
      float before[kLanes], target[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        before[lane] = now[lane];
        target[lane] = now[lane] + residual[position * kLanes + lane] * inverse_diagonal[position];
      }
      round(position, target);
      float* change = changes + (end - 1 - position) * kLanes;
      bool changed = false;
      for (int lane = 0; lane < kLanes; ++lane) {
        change[lane] = now[lane] - before[lane];
        changed |= change[lane] != 0.0f;
      }
      any_changed |= changed;
      if (changed)  // else it would subtract zeros
        encoder_.loops_.subtract(hessian + position * dim_ + begin, dim_, change, 1, end - begin,
                                 residual + begin * kLanes);
    }
    if (!any_changed) return;
    const float* last_row = hessian + (end - 1) * dim_;
    encoder_.loops_.subtract(last_row, -dim_, changes, end - begin, begin, residual);
    encoder_.loops_.subtract(last_row + end, -dim_, changes, end - begin, dim_ - end, residual + end * kLanes);
  }

  const LaneEncoder& encoder_;
  const Batch& batch_;
  std::int64_t first_token_;
  Scratch& scratch_;
  Lanes& lanes_;
  int dim_, first_channel_;
  const std::int32_t* order_;
};

void LaneEncoder::encode(const Batch& batch, std::int64_t first_token, Scratch& scratch, std::uint8_t* codes,
                         std::uint16_t* exact) const {
  KVQ_ASSERT(batch.tokens >= 1 && batch.tokens <= kLanes && (batch.mask == nullptr || exact != nullptr));
  const auto numbers = static_cast<std::size_t>(head_dim_) * kLanes;
  scratch.compensated.resize(numbers);
  scratch.restored.resize(numbers);
  scratch.residual.resize(numbers);
  scratch.codes.resize(numbers);
  scratch.exact.resize(numbers);
  scratch.masked.resize(static_cast<std::size_t>(head_dim_));
  Lanes lanes;
  if (per_token_) lanes.set_tokens(batch);
  for (int kv_head = 0; kv_head < kv_heads_; ++kv_head) {
    Head head(*this, batch, first_token, scratch, lanes, kv_head);
    head.load();
    head.feed_back();
    if (icm_ > 0) head.descend();
    head.store(codes, exact);
  }
}

void LaneEncoder::decode(const std::uint8_t* codes, const float* zero, const float* scale, float* x) const {
  const int width = kv_heads_ * head_dim_;
  for (int channel = 0; channel < width; ++channel) {
    const float* decoded = tables_.books[static_cast<std::size_t>(book_of(channel))].decoded.data();
    const int range = per_token_ ? 0 : channel;
    x[channel] = zero[range] + scale[range] * decoded[codes[channel]];
  }
}

}  // namespace kvq
