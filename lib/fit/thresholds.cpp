#include <kvq/fit/thresholds.h>

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/parallel.h>
#include <kvq/fit/rotation.h>
#include <kvq/fit/sample.h>
#include <kvq/quant/encoder.h>

namespace kvq {

namespace {

constexpr int kMostSinks = 16;

/// A set of thresholds is asked for once.
template <typename Number>
void refuse_repeats(std::vector<Number> numbers, const char* flag) {
  std::sort(numbers.begin(), numbers.end());
  const auto twice = std::adjacent_find(numbers.begin(), numbers.end());
  if (twice != numbers.end()) fail(ErrorKind::Usage, fmt::format("{} holds {} twice", flag, *twice));
}

void check(const ThresholdOptions& options, std::int64_t seqlen) {
  if (options.fractions.empty()) fail(ErrorKind::Usage, "no outlier fractions given; e.g. 0.01");
  for (double fraction : options.fractions) {
    if (!(fraction >= 0 && fraction < 0.5)) {
      fail(ErrorKind::Usage, fmt::format("outlier fraction {}: at least 0 and below 0.5 is possible", fraction));
    }
  }
  refuse_repeats(options.fractions, "--outliers");
  refuse_repeats(options.sinks, "--sinks");
  if (options.sinks.empty()) fail(ErrorKind::Usage, "no sink count given; e.g. 1");
  for (int sinks : options.sinks) {
    if (sinks < 0 || sinks > kMostSinks)
      fail(ErrorKind::Usage, fmt::format("{} sinks: 0 to {} are possible", sinks, kMostSinks));
    if (sinks >= seqlen) {
      fail(ErrorKind::Usage,
           fmt::format("{} sinks leave nothing of the calibration's sequences of {} tokens", sinks, seqlen));
    }
  }
  if (!(options.cap >= 0 && options.cap < 1)) {
    fail(ErrorKind::Usage, fmt::format("cap {}: above 0 and below 1 is possible, 0 is no cap", options.cap));
  }
}

/// Adds one tensor of one layer to every set.
void add_tensor(std::vector<ThresholdSet>& sets, int layer, ThresholdTensor tensor, TokenSample sample, double cap,
                int threads) {
  const std::vector<float> columns = columns_of(sample, threads);
  for (ThresholdSet& set : sets) {
    ChannelThresholds& result = set.layers[layer][static_cast<int>(tensor)];
    for (std::vector<float>* field : {&result.lower, &result.upper, &result.minimum, &result.maximum})
      field->resize(sample.width);
  }
  parallel_for(sample.width, threads, [&](std::int64_t channel) {
    std::vector<float> counted;
    float minimum = 0, maximum = 0;
    for (std::size_t index = 0; index < sets.size(); ++index) {
      ThresholdSet& set = sets[index];
      if (index == 0 || set.sinks != sets[index - 1].sinks) {
        counted.clear();
        for (std::int64_t sequence = 0; sequence < sample.sequences; ++sequence) {
          const auto begin = columns.begin() + channel * sample.tokens() + sequence * sample.seqlen;
          counted.insert(counted.end(), begin + set.sinks, begin + sample.seqlen);
        }
        const auto [least, most] = std::minmax_element(counted.begin(), counted.end());
        minimum = *least;
        maximum = *most;
      }
      ChannelThresholds& result = set.layers[layer][static_cast<int>(tensor)];
      const QuantilePair pair =
          set.fraction == 0 ? QuantilePair{minimum, maximum} : quantile_pair(counted, set.fraction / 2);
      result.lower[channel] = pair.lower;
      result.upper[channel] = pair.upper;
      result.minimum[channel] = minimum;
      result.maximum[channel] = maximum;
    }
  });
  for (ThresholdSet& set : sets) {
    ChannelThresholds& result = set.layers[layer][static_cast<int>(tensor)];
    sample.sinks = set.sinks;
    const ChannelRange range{result.lower, result.upper};
    result.outlier_rate = outside_rate(sample, range, sample.width, threads);
    result.capped_outlier_rate = result.outlier_rate;
    if (cap > 0 && tensor != ThresholdTensor::Value)
      result.capped_outlier_rate = outside_rate(sample, range, outlier_cap(cap, sample.width), threads);
    result.online_outlier_rate = std::min(1.0, 2.0 * outliers_per_end(set.fraction, sample.width) / sample.width);
  }
}

}  // namespace

ThresholdsFile extract_thresholds(const CalibrationReader& calibration, const ThresholdOptions& options,
                                  RunContext& context) {
  const CalibrationHeader& header = calibration.header();
  check(options, header.seqlen);
  std::vector<double> fractions = options.fractions;
  std::vector<int> sinks = options.sinks;
  std::sort(fractions.begin(), fractions.end(), std::greater<>());
  std::sort(sinks.begin(), sinks.end());

  ThresholdsFile file;
  file.provenance.model_sha256 = header.provenance.model_sha256;
  file.provenance.tokenizer_sha256 = header.provenance.tokenizer_sha256;
  file.provenance.text_sha256 = header.provenance.text_sha256;
  file.provenance.parents = {{"calibration", calibration.sha256()}};
  file.shape = header.shape;
  file.cap = options.cap;
  for (int count : sinks) {
    for (double fraction : fractions) {
      ThresholdSet& set = file.sets.emplace_back();
      set.fraction = fraction;
      set.sinks = count;
      set.layers.resize(header.shape.layers);
    }
  }

  context.progress.begin("thresholds, layer", header.shape.layers);
  for (int layer = 0; layer < header.shape.layers; ++layer) {
    context.cancel.check();
    TokenSample sample{{}, header.shape.width(), header.sequences, header.seqlen, 0};
    std::vector<float> x = calibration.values(layer, Side::Key);
    sample.x = x;
    add_tensor(file.sets, layer, ThresholdTensor::Key, sample, options.cap, context.threads);
    rotate_tokens(x, header.shape, header.rope.of(layer), header.seqlen, context.threads);
    add_tensor(file.sets, layer, ThresholdTensor::KeyPostRope, sample, options.cap, context.threads);
    x = calibration.values(layer, Side::Value);
    sample.x = x;
    add_tensor(file.sets, layer, ThresholdTensor::Value, sample, options.cap, context.threads);
    context.progress.advance(1);
  }
  context.progress.end();
  return file;
}

}  // namespace kvq
