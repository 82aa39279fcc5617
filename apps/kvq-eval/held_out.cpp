#include "kvq-eval/held_out.h"

#include <fstream>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include <kvq/core/atomic_file.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/text/corpus.h>

namespace kvq::apps {

namespace fs = std::filesystem;

namespace {

LabelledText write_part(const fs::path& path, std::string_view bytes) {
  const std::string sha256 = sha256_of(bytes);
  std::error_code error;
  if (!fs::exists(path, error) || sha256_of_file(path) != sha256) write_file_atomically(path, bytes, true);
  return {path.stem().string(), path, sha256};
}

bool starts_character(char byte) { return (static_cast<unsigned char>(byte) & 0xc0u) != 0x80u; }

}  // namespace

SplitText split_text(const fs::path& text, const fs::path& folder) {
  read_text(TextArgument::parse(text.string()));  // says what is wrong with it
  std::ifstream file(text, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t wanted = bytes.size() - bytes.size() / 5;
  std::size_t cut = bytes.find('\n', wanted == 0 ? 0 : wanted - 1);
  cut = cut == std::string::npos ? wanted : cut + 1;
  if (cut >= bytes.size()) cut = wanted;
  while (cut < bytes.size() && !starts_character(bytes[cut])) ++cut;
  if (cut == 0 || cut >= bytes.size())
    fail(ErrorKind::Input, fmt::format("{}: {} bytes cannot be cut into two texts", text.string(), bytes.size()));
  fs::create_directories(folder);
  const std::string ending = text.extension().string();
  return {write_part(folder / ("calibration" + ending), std::string_view(bytes).substr(0, cut)),
          write_part(folder / ("held-out" + ending), std::string_view(bytes).substr(cut))};
}

}  // namespace kvq::apps
