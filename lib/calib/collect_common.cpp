#include <kvq/calib/collect_common.h>

#include <unistd.h>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>

namespace kvq {

RunIdentity identity_of(const CalibrationHeader& header, const std::string& what, int threads) {
  RunIdentity identity;
  const auto add = [&](const std::string& name, const std::string& value) {
    identity.entries.emplace_back(name, value);
  };
  add("kvq", KVQ_VERSION);
  add("collects", what);
  add("model", header.provenance.model_sha256);
  add("tokenizer", header.provenance.tokenizer_sha256);
  add("text", header.provenance.text_sha256);
  identity.add_settings(header.provenance.config);
  add("sequences", fmt::format("{}", header.sequences));
  add("tokens per sequence", fmt::format("{}", header.seqlen));
  add("tokens", sha256_of(std::string_view(reinterpret_cast<const char*>(header.tokens.data()),
                                           header.tokens.size() * sizeof(std::int32_t))));
  for (std::size_t index = 0; index < header.domains.size(); ++index)
    add(fmt::format("domain {}", index), header.domains[index]);
  add("beginning of sequence", header.bos);
  add("query heads", header.query_heads);
  if (!header.gradients) add("gradients", "none");
  if (header.metrics) add("metrics", "of keys and values");
  add("threads", fmt::format("{}", threads));  // sums depend on how they are split
  return identity;
}

CalibrationHeader header_of(const Model& model, const std::vector<Window>& windows,
                            const std::vector<std::string>& domains, const CollectOptions& options) {
  KVQ_ASSERT(!windows.empty());
  CalibrationHeader header;
  header.provenance = options.provenance;
  header.shape = model.config().kv;
  header.rope = model.config().rope;
  header.sequences = static_cast<std::int64_t>(windows.size());
  header.seqlen = static_cast<std::int64_t>(windows.front().ids.size());
  header.bos = options.bos;
  header.query_heads = query_heads_name(options.query_heads);
  header.gradients = options.gradients;
  header.metrics = options.metrics || !options.gradients;
  for (const Window& window : windows) {
    KVQ_ASSERT(static_cast<std::int64_t>(window.ids.size()) == header.seqlen);
    header.tokens.insert(header.tokens.end(), window.ids.begin(), window.ids.end());
    header.domains.push_back(domains.at(static_cast<std::size_t>(window.stream)));
  }
  return header;
}

void check_ids(const std::vector<Window>& windows, int vocab) {
  for (const Window& window : windows) {
    for (std::int32_t id : window.ids) {
      if (id >= 0 && id < vocab) continue;
      fail(ErrorKind::Mismatch,
           fmt::format("the tokenizer gives token {}, the model knows 0 to {}: they do not belong together", id,
                       vocab - 1));
    }
  }
}

void remove_stale_parts(const std::filesystem::path& output) {
  const std::filesystem::path folder = output.has_parent_path() ? output.parent_path() : std::filesystem::path(".");
  const std::string prefix = fmt::format(".{}.", output.filename().string());
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    const bool numbered = name.size() > prefix.size() + 5 && name.starts_with(prefix) && name.ends_with(".part") &&
                          name.find_first_not_of("0123456789", prefix.size()) == name.size() - 5;
    if (numbered) ::unlink(entry.path().c_str());
  }
}

bool same_content(const CalibrationHeader& a, const CalibrationHeader& b) {
  return a.tokens == b.tokens && a.domains == b.domains && a.shape == b.shape && a.bos == b.bos &&
         a.query_heads == b.query_heads && a.gradients == b.gradients && a.metrics == b.metrics &&
         a.provenance.config == b.provenance.config && a.provenance.model_sha256 == b.provenance.model_sha256 &&
         a.provenance.tokenizer_sha256 == b.provenance.tokenizer_sha256 &&
         a.provenance.text_sha256 == b.provenance.text_sha256;
}

}  // namespace kvq
