#include <kvq/text/tokenizer.h>

#include <system_error>

#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/formats/gguf.h>
#include <kvq/text/bpe_tokenizer.h>
#include <kvq/text/tokenizer_spec.h>

namespace kvq {

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model) {
  std::error_code ignored;  // is_gguf says why a path cannot be read
  if (std::filesystem::is_directory(model, ignored))
    return std::make_unique<BpeTokenizer>(tokenizer_spec_from_hf_folder(model));
  if (!is_gguf(model)) {
    fail(ErrorKind::Input, fmt::format("{}: is neither a GGUF file nor a Hugging Face folder", model.string()));
  }
  return std::make_unique<BpeTokenizer>(tokenizer_spec_from_gguf(model));
}

}  // namespace kvq
