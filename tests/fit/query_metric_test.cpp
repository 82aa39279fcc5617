// Fits without gradients: metric=query and weights=query.
#include <kvq/fit/query_metric.h>

#include <cmath>

#include <kvq/core/error.h>
#include <kvq/fit/block_fisher.h>
#include <kvq/fit/fit.h>
#include <kvq/quant/encoder.h>
#include <kvq/quant/head_rotation.h>

#include "fit/small_calibration.h"
#include "support/catch.h"
#include "support/temp_dir.h"

using namespace kvq;
using namespace kvq::test;

namespace {

constexpr SmallContents kForwardOnly{.gradients = false, .metrics = true};

const SideQuantizer& side_of(const std::vector<Quantizer>& fits, std::size_t index, int layer, Side side) {
  return fits[index].layers[static_cast<std::size_t>(layer)].side(side);
}

void check_close(const std::vector<float>& found, const std::vector<double>& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t index = 0; index < found.size(); ++index)
    CHECK(found[index] == Approx(expected[index]).epsilon(1e-5).margin(1e-6));
}

}  // namespace

TEST_CASE("weights=query is the fit to gradients of sqrt(mass H_jj) for keys and mass sqrt(M_jj) for values") {
  TempDir folder;
  const auto roots = [](float value, int layer, Side side, bool gradient, int token, int channel) {
    if (!gradient) return value;
    const int head = channel / kSmallShape.head_dim, own = channel % kSmallShape.head_dim;
    const float mass = small_mass(token);
    return (side == Side::Key ? std::sqrt(mass) : mass) *
           static_cast<float>(std::sqrt(small_metric(layer, side, head, own, own)));
  };
  write_small_calibration(folder / "gradients.h5", roots);
  write_small_calibration(folder / "forward.h5", nullptr, std::string(64, 'a'), "joint", kForwardOnly);
  const CalibrationReader gradients(folder / "gradients.h5"), forward(folder / "forward.h5");
  for (const std::string words : {"", ":share=head", ":sink=2,share=2", ":recent=4"}) {
    CAPTURE(words);
    const Recipe recipe = parse_recipe("nuq3" + words);
    const auto a = fit_quantizers(gradients, nullptr, {recipe}, quiet_context()),
               b = fit_quantizers(forward, nullptr, {with_query_metric(recipe)}, quiet_context());
    const auto unweighted = fit_quantizers(forward, nullptr, {parse_recipe("nuq3:weights=none")}, quiet_context());
    for (int layer = 0; layer < kSmallShape.layers; ++layer) {
      for (const Side side : kSides) {
        const auto &left = side_of(a, 0, layer, side).codebooks, &right = side_of(b, 0, layer, side).codebooks;
        REQUIRE(left.size() == right.size());
        for (std::size_t book = 0; book < left.size(); ++book) CHECK(left[book].centroids == right[book].centroids);
        CHECK(right[0].centroids != side_of(unweighted, 0, layer, side).codebooks[0].centroids);
      }
    }
  }
}

TEST_CASE("metric=query takes order, feedback and H from the file's metric") {
  TempDir folder;
  write_small_calibration(folder / "forward.h5", nullptr, std::string(64, 'a'), "joint", kForwardOnly);
  const CalibrationReader calibration(folder / "forward.h5");
  const auto fits = fit_quantizers(
      calibration, nullptr, {parse_recipe("nuq3:feedback,icm=1,metric=query,weights=query,damp=2%")}, quiet_context());
  for (int layer = 0; layer < kSmallShape.layers; ++layer) {
    for (const Side side : kSides) {
      const SideQuantizer& found = side_of(fits, 0, layer, side);
      const auto dim = static_cast<std::size_t>(kSmallShape.head_dim);
      std::vector<double> hessian, updates;
      std::vector<std::int32_t> order;
      for (int head = 0; head < kSmallShape.kv_heads; ++head) {
        std::vector<double> block, scales(dim, 1.0);
        for (int row = 0; row < kSmallShape.head_dim; ++row)
          for (int column = 0; column < kSmallShape.head_dim; ++column)
            block.push_back(small_metric(layer, side, head, row, column));
        for (std::size_t channel = 0; channel < dim && side == Side::Key; ++channel) {
          const std::size_t at = static_cast<std::size_t>(head) * dim + channel;
          scales[channel] = 0.5 * found.upper[at] - 0.5 * found.lower[at];
        }
        const BlockFactor factor = factor_block(block, scales, CodingOrder::Energy, 0.02);
        hessian.insert(hessian.end(), factor.hessian.begin(), factor.hessian.end());
        updates.insert(updates.end(), factor.updates.begin(), factor.updates.end());
        order.insert(order.end(), factor.order.begin(), factor.order.end());
      }
      CHECK(found.feedback.order == order);
      check_close(found.feedback.hessian, hessian);
      check_close(found.feedback.updates, updates);
    }
  }
}

TEST_CASE("Another metric, other codes") {
  TempDir folder;
  SmallContents both{.gradients = true, .metrics = true};
  write_small_calibration(folder / "c.h5", nullptr, std::string(64, 'a'), "joint", both);
  const CalibrationReader calibration(folder / "c.h5");
  // Equal codebooks: what differs in the codes comes from H alone.
  const auto fits = fit_quantizers(calibration, nullptr,
                                   {parse_recipe("int2:feedback"), parse_recipe("int2:feedback,metric=query"),
                                    parse_recipe("K=int2:feedback,metric=query/V=int2:feedback")},
                                   quiet_context());
  const auto codes = [&](std::size_t index, Side side) {
    const std::vector<float> x = calibration.values(0, side);
    EncodedTokens encoded;
    SideEncoder(side_of(fits, index, 0, side)).encode(x, encoded);
    return encoded.codes;
  };
  for (const Side side : kSides) CHECK(codes(0, side) != codes(1, side));
  CHECK(codes(2, Side::Key) == codes(1, Side::Key));
  CHECK(codes(2, Side::Value) == codes(0, Side::Value));
}

TEST_CASE("The metric of rotated values measures the same error") {
  const KvShape shape{.layers = 1, .heads = 2, .kv_heads = 2, .head_dim = 12};  // blocks of four
  std::vector<double> metric;
  std::vector<float> scale, error;
  for (int index = 0; index < 2 * 12 * 12; ++index) {
    const int head = index / 144, row = index / 12 % 12, column = index % 12;
    metric.push_back((row == column ? 5.0 : 0.0) + std::cos(row + head) * std::cos(column + head));
  }
  for (int channel = 0; channel < 24; ++channel) {
    scale.push_back(0.25f + 0.125f * static_cast<float>(channel));
    error.push_back(static_cast<float>(std::sin(3 * channel)));
  }
  const std::vector<double> turned = rotated_metric(metric, scale, shape);
  std::vector<float> rotated = error;
  HeadRotation(scale, 2, 12).forward(rotated);
  for (int head = 0; head < 2; ++head) {
    double before = 0, after = 0;
    for (int row = 0; row < 12; ++row) {
      for (int column = 0; column < 12; ++column) {
        const int at = (head * 12 + row) * 12 + column;
        before += metric[at] * error[head * 12 + row] * error[head * 12 + column];
        after += turned[at] * rotated[head * 12 + row] * rotated[head * 12 + column];
        CHECK(turned[at] == turned[(head * 12 + column) * 12 + row]);
      }
    }
    CHECK(after == Approx(before).epsilon(1e-5));
  }
}

TEST_CASE("What needs gradients is refused for a file without, what needs a metric for one without that") {
  TempDir folder;
  write_small_calibration(folder / "forward.h5", nullptr, std::string(64, 'a'), "joint", kForwardOnly);
  write_small_calibration(folder / "plain.h5");
  const CalibrationReader forward(folder / "forward.h5"), plain(folder / "plain.h5");
  CHECK_THROWS_WITH(check_fit(forward, nullptr, {parse_recipe("nuq3")}),
                    ContainsSubstring("keys need gradients (for the weights of codebooks)") &&
                        ContainsSubstring("--forward-only") && ContainsSubstring("--metric query"));
  CHECK_THROWS_WITH(check_fit(forward, nullptr, {parse_recipe("nuq3:feedback")}),
                    ContainsSubstring("the block Fisher matrix and the weights of codebooks"));
  CHECK_THROWS_WITH(check_fit(forward, nullptr, {parse_recipe("K=int4/V=int4:feedback")}),
                    ContainsSubstring("values need gradients (for the block Fisher matrix)"));
  for (const char* recipe : {"nuq3:weights=query", "nuq2:feedback,metric=query"})
    CHECK_THROWS_WITH(check_fit(plain, nullptr, {parse_recipe(recipe)}),
                      ContainsSubstring("'key_metric'") && ContainsSubstring("--forward-only"));
  for (const char* recipe : {"nuq3:weights=none", "nuq3:weights=query", "int4", "int4:rope=post", "fp8", "kivi2",
                             "int4:feedback,metric=query", "nuq2:rotate=hadamard,levels=5,weights=query",
                             "K=nuq2:widths=pair,feedback,icm=3,metric=query,weights=query/"
                             "V=nuq2:levels=5,rotate=hadamard,feedback,icm=3,metric=query,weights=query"}) {
    INFO(recipe);
    CHECK_NOTHROW(fit_quantizers(forward, nullptr, {parse_recipe(recipe)}, quiet_context()));
  }
  // Signs of gradients do not matter to what uses none.
  write_small_calibration(folder / "mean.h5", nullptr, std::string(64, 'a'), "mean",
                          {.gradients = true, .metrics = true});
  const CalibrationReader magnitudes(folder / "mean.h5");
  CHECK_NOTHROW(check_fit(magnitudes, nullptr, {parse_recipe("nuq3:feedback,metric=query")}));
}
