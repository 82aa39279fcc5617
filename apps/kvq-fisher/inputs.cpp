#include "kvq-fisher/inputs.h"

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/plural.h>
#include <kvq/core/rng.h>

namespace kvq::apps {

std::int64_t FisherInputs::tokens() const {
  std::int64_t total = 0;
  for (const TokenStream& stream : streams) total += static_cast<std::int64_t>(stream.ids.size());
  return total;
}

std::vector<std::string> FisherInputs::domains() const {
  std::vector<std::string> names;
  for (const TokenStream& stream : streams) names.push_back(stream.domain);
  return names;
}

std::string FisherInputs::text_sha256() const {
  if (streams.size() == 1) return streams[0].text_sha256;
  std::string all;
  for (const TokenStream& stream : streams) all += stream.text_sha256 + "\n";
  return sha256_of(all);
}

FisherInputs load_inputs(const FisherArguments& arguments, RunContext& context) {
  FisherInputs inputs;
  std::vector<TextArgument> texts;
  std::vector<std::filesystem::path> files = {arguments.model};
  for (const std::string& text : arguments.text) {
    texts.push_back(TextArgument::parse(text));
    files.push_back(texts.back().path);
  }
  inputs.watch = std::make_unique<InputWatch>(files);

  std::vector<TextFile> contents;
  for (const TextArgument& text : texts) contents.push_back(read_text(text));
  static_cast<LoadedModel&>(inputs) = open_model(arguments, context);
  for (const TextFile& content : contents) inputs.streams.push_back(tokenize(*inputs.tokenizer, content));
  warn_beyond_context(*inputs.model, "--seqlen", arguments.seqlen, context.log);
  return inputs;
}

std::vector<Window> choose_windows(const FisherArguments& arguments, const FisherInputs& inputs) {
  if (!arguments.sequential) {
    Rng rng(arguments.seed);
    return sampled_windows(inputs.streams, arguments.seqlen, inputs.prepend_bos, inputs.bos(), arguments.samples, rng);
  }
  std::vector<Window> windows =
      sequential_windows(inputs.streams, arguments.seqlen, inputs.prepend_bos, inputs.bos(), arguments.samples);
  if (static_cast<std::int64_t>(windows.size()) < arguments.samples) {
    fail(ErrorKind::Input, fmt::format("--samples {}: the text holds only {} of --seqlen {}", arguments.samples,
                                       plural(windows.size(), "sequence"), arguments.seqlen));
  }
  return windows;
}

}  // namespace kvq::apps
