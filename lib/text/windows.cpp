#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/plural.h>
#include <kvq/text/corpus.h>

namespace kvq {

namespace {

/// The non-overlapping windows of all streams.
class Grid {
 public:
  Grid(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos, std::int32_t bos_id)
      : streams_(streams), seqlen_(seqlen), bos_(prepend_bos), bos_id_(bos_id), step_(seqlen - (prepend_bos ? 1 : 0)) {
    if (seqlen < 2) fail(ErrorKind::Usage, fmt::format("--seqlen {}: a window needs at least 2 tokens", seqlen));
    if (prepend_bos && bos_id < 0) {
      fail(ErrorKind::Usage, "--bos window: this tokenizer has no begin-of-sequence token; use --bos never");
    }
    for (const TokenStream& stream : streams) counts_.push_back(static_cast<std::int64_t>(stream.ids.size()) / step_);
    if (total() == 0) {
      const auto longest =
          std::max_element(streams.begin(), streams.end(),
                           [](const TokenStream& a, const TokenStream& b) { return a.ids.size() < b.ids.size(); });
      const std::string name = longest == streams.end() || longest->name.empty() ? "" : longest->name + ": ";
      fail(ErrorKind::Input, fmt::format("{}the {} {}; one window of --seqlen {} needs {}{}", name,
                                         streams.size() == 1 ? "text has" : "longest text has",
                                         plural(longest == streams.end() ? 0 : longest->ids.size(), "token"), seqlen,
                                         step_, prepend_bos ? " and a begin-of-sequence token" : ""));
    }
  }

  std::int64_t total() const { return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0}); }
  const std::vector<std::int64_t>& counts() const { return counts_; }

  /// `wanted` ≤ total() windows, shared among the streams as evenly as their lengths allow; earlier streams get the
  /// rest.
  std::vector<std::int64_t> shares(std::int64_t wanted) const {
    std::vector<std::int64_t> share(counts_.size(), 0);
    while (wanted > 0) {
      const auto open = [&](std::size_t stream) { return share[stream] < counts_[stream]; };
      std::int64_t streams_open = 0;
      for (std::size_t stream = 0; stream < share.size(); ++stream) streams_open += open(stream) ? 1 : 0;
      const std::int64_t each = std::max<std::int64_t>(1, wanted / streams_open);
      for (std::size_t stream = 0; stream < share.size() && wanted > 0; ++stream) {
        if (!open(stream)) continue;
        const std::int64_t more = std::min({each, counts_[stream] - share[stream], wanted});
        share[stream] += more;
        wanted -= more;
      }
    }
    return share;
  }

  Window window(std::size_t stream, std::int64_t index) const {
    Window window;
    window.stream = static_cast<int>(stream);
    window.first_token = index * step_;
    window.ids.reserve(static_cast<std::size_t>(seqlen_));
    if (bos_) window.ids.push_back(bos_id_);
    const auto first = streams_[stream].ids.begin() + window.first_token;
    window.ids.insert(window.ids.end(), first, first + step_);
    return window;
  }

 private:
  const std::vector<TokenStream>& streams_;
  std::int64_t seqlen_;
  bool bos_;
  std::int32_t bos_id_;
  std::int64_t step_;  ///< text tokens of a window
  std::vector<std::int64_t> counts_;
};

}  // namespace

std::vector<Window> sequential_windows(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos,
                                       std::int32_t bos_id, std::int64_t max_windows) {
  if (max_windows < 0)
    fail(ErrorKind::Usage, fmt::format("--max-windows {}: 0 (all) or a positive number is needed", max_windows));
  const Grid grid(streams, seqlen, prepend_bos, bos_id);
  const std::vector<std::int64_t> shares =
      grid.shares(max_windows == 0 ? grid.total() : std::min(max_windows, grid.total()));
  std::vector<Window> windows;
  for (std::size_t stream = 0; stream < shares.size(); ++stream) {
    for (std::int64_t index = 0; index < shares[stream]; ++index) windows.push_back(grid.window(stream, index));
  }
  return windows;
}

std::vector<Window> sampled_windows(const std::vector<TokenStream>& streams, std::int64_t seqlen, bool prepend_bos,
                                    std::int32_t bos_id, std::int64_t samples, Rng& rng) {
  if (samples < 1) fail(ErrorKind::Usage, fmt::format("--samples {}: at least 1 is needed", samples));
  const Grid grid(streams, seqlen, prepend_bos, bos_id);
  if (samples > grid.total()) {
    fail(ErrorKind::Input,
         fmt::format("--samples {}: the text holds {} of --seqlen {}; give more text, or fewer or shorter samples",
                     samples, plural(grid.total(), "window"), seqlen));
  }
  const std::vector<std::int64_t> shares = grid.shares(samples);
  std::vector<Window> windows;
  for (std::size_t stream = 0; stream < shares.size(); ++stream) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(grid.counts()[stream]));
    std::iota(indices.begin(), indices.end(), 0);
    const auto chosen = static_cast<std::size_t>(shares[stream]);
    for (std::size_t at = 0; at < chosen; ++at) {  // the first steps of a Fisher-Yates shuffle
      std::swap(indices[at], indices[at + rng.below(indices.size() - at)]);
    }
    std::sort(indices.begin(), indices.begin() + static_cast<std::ptrdiff_t>(chosen));
    for (std::size_t at = 0; at < chosen; ++at) windows.push_back(grid.window(stream, indices[at]));
  }
  return windows;
}

}  // namespace kvq
