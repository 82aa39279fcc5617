#include <kvq/vector/compress.h>

#include <algorithm>

#include <fmt/format.h>

#include <kvq/coding/byte_io.h>
#include <kvq/core/error.h>
#include <kvq/core/hash.h>
#include <kvq/core/parallel.h>
#include <kvq/core/plural.h>
#include <kvq/vector/vector_recipe.h>

namespace kvq {

namespace {

constexpr std::string_view kTensorMagic = "KVQT";
constexpr std::uint32_t kTensorVersion = 1;
constexpr std::size_t kChecksumBytes = 32;
constexpr int kMostChannels = 65536;
constexpr std::int64_t kIndexedRows = 128;  ///< of a run, where the codec's own blocks are shorter
constexpr std::int64_t kSampleRows = 16384;

std::int64_t rows_of_run(const VectorCodec& codec) {
  const std::int64_t block = codec.block_rows();
  return (kIndexedRows + block - 1) / block * block;
}

std::int64_t parts(std::int64_t rows, std::int64_t of) { return rows / of + (rows % of != 0 ? 1 : 0); }

void put_text(std::vector<std::byte>& out, std::string_view text) {
  for (const char letter : text) out.push_back(static_cast<std::byte>(letter));
}

std::vector<std::byte> checksum(std::span<const std::byte> bytes) {
  Sha256 sha;
  sha.update(bytes);
  const std::string hex = sha.finish();
  const auto digit = [](char letter) { return letter <= '9' ? letter - '0' : letter - 'a' + 10; };
  std::vector<std::byte> sum;
  for (std::size_t at = 0; at < hex.size(); at += 2)
    sum.push_back(static_cast<std::byte>(16 * digit(hex[at]) + digit(hex[at + 1])));
  return sum;
}

/// At most kSampleRows rows: all, or runs of `run` rows spread evenly, so that what follows from neighbours stays.
std::vector<float> sample_rows(std::span<const float> x, std::int64_t rows, int dim, std::int64_t run) {
  if (rows <= kSampleRows) return {x.begin(), x.end()};
  const std::int64_t runs = std::max<std::int64_t>(1, kSampleRows / run), there = rows / run;
  std::vector<float> sample;
  for (std::int64_t index = 0; index < std::min(runs, there); ++index) {
    const std::int64_t first = index * there / std::min(runs, there) * run;
    const auto part = x.subspan(static_cast<std::size_t>(first * dim), static_cast<std::size_t>(run * dim));
    sample.insert(sample.end(), part.begin(), part.end());
  }
  if (sample.empty()) sample.assign(x.begin(), x.begin() + kSampleRows * dim);
  return sample;
}

/// Rows that the recipe's blocks have, before there is a codec.
std::int64_t rows_of_blocks(const VectorRecipe& recipe) {
  if (recipe.method == VectorMethod::Delta) return recipe.anchor;
  return recipe.low_rank > 0 || recipe.entropy != EntropyWord::None ? recipe.page : kIndexedRows;
}

[[noreturn]] void refuse_tensor(const std::string& what) { fail(ErrorKind::Io, "compressed tensor: " + what); }

}  // namespace

CompressedTensor::CompressedTensor(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {
  if (bytes_.size() < kChecksumBytes) refuse_tensor(fmt::format("{}", plural(bytes_.size(), "byte")) + ", too few");
  const auto content = std::span<const std::byte>(bytes_).first(bytes_.size() - kChecksumBytes);
  ByteReader reader(content, "compressed tensor");
  const auto read_text = [&](std::uint64_t length) {
    const auto letters = reader.take(length);
    return std::string(reinterpret_cast<const char*>(letters.data()), letters.size());
  };
  if (read_text(kTensorMagic.size()) != kTensorMagic) refuse_tensor("does not begin with KVQT");
  const std::uint64_t version = reader.number(4);
  if (version != kTensorVersion)
    refuse_tensor(fmt::format("version {}; this program reads version {}", version, kTensorVersion));
  if (!std::ranges::equal(checksum(content), std::span<const std::byte>(bytes_).last(kChecksumBytes)))
    refuse_tensor("its checksum is wrong: bytes were changed or lost");

  // Whoever computes a checksum can still write nonsense: nothing below trusts a number before it is checked.
  const std::uint64_t rows = reader.number(8), dim = reader.number(4);
  if (dim < 1 || dim > kMostChannels) refuse_tensor(fmt::format("rows of {} channels", dim));
  recipe_ = read_text(reader.number(4));
  const auto tables = reader.take(reader.number(8));
  VectorRecipe recipe;
  try {
    recipe = parse_vector_recipe(recipe_);
  } catch (const Error& error) {
    refuse_tensor(error.what());
  }
  dim_ = static_cast<int>(dim);
  codec_ = make_codec(recipe, dim_, tables);
  if (rows > reader.left())
    refuse_tensor(fmt::format("{} rows in {} bytes", rows, reader.left()));  // a byte each at least
  rows_ = static_cast<std::int64_t>(rows);
  index_ = BlockIndex::read(reader, static_cast<std::uint64_t>(parts(rows_, rows_of_run(*codec_))));
  payload_begin_ = reader.offset();
  if (reader.left() != index_.payload_bytes())
    refuse_tensor(fmt::format("{} behind its rows", plural(reader.left() - index_.payload_bytes(), "byte")));
}

double CompressedTensor::bits_per_value() const {
  return rows_ == 0 ? 0 : 8.0 * static_cast<double>(bytes_.size()) / (static_cast<double>(rows_) * dim_);
}

double CompressedTensor::payload_bits_per_value() const {
  return rows_ == 0 ? 0 : 8.0 * static_cast<double>(index_.payload_bytes()) / (static_cast<double>(rows_) * dim_);
}

CompressedTensor compress(std::span<const float> x, std::int64_t rows, int dim, const std::string& recipe_text,
                          int threads) {
  const VectorRecipe recipe = parse_vector_recipe(recipe_text);
  if (dim < 1 || dim > kMostChannels)
    fail(ErrorKind::Usage, fmt::format("compress: rows of {} channels; 1 to {} are possible", dim, kMostChannels));
  if (rows < 0 || x.size() % static_cast<std::size_t>(dim) != 0 ||
      x.size() / static_cast<std::size_t>(dim) != static_cast<std::uint64_t>(rows))
    fail(ErrorKind::Usage, fmt::format("compress: {} values for {} rows of {} channels", x.size(), rows, dim));
  check_rows(x, dim);

  const std::vector<float> sample = sample_rows(x, rows, dim, rows_of_blocks(recipe));
  VectorSample learned_from;
  learned_from.x = sample;
  learned_from.threads = threads;
  const std::vector<std::byte> tables = train_vector_tables(recipe, dim, learned_from);
  const std::unique_ptr<VectorCodec> codec = make_codec(recipe, dim, tables);

  const std::int64_t run = rows_of_run(*codec);
  std::vector<std::vector<std::byte>> runs(static_cast<std::size_t>(parts(rows, run)));
  parallel_for(static_cast<std::int64_t>(runs.size()), threads, [&](std::int64_t index) {
    const std::int64_t count = std::min(run, rows - index * run);
    const auto part = x.subspan(static_cast<std::size_t>(index * run * dim), static_cast<std::size_t>(count * dim));
    try {
      codec->encode(part, runs[static_cast<std::size_t>(index)]);
    } catch (const Error& error) {
      fail(error.kind(), fmt::format("compress, rows from {} on: {}", index * run, error.what()));
    }
  });

  BlockIndex index;
  for (const std::vector<std::byte>& one : runs) index.add(one.size());
  const std::string words = short_form(recipe);
  std::vector<std::byte> bytes;
  put_text(bytes, kTensorMagic);
  put_number(bytes, kTensorVersion, 4);
  put_number(bytes, static_cast<std::uint64_t>(rows), 8);
  put_number(bytes, static_cast<std::uint64_t>(dim), 4);
  put_number(bytes, words.size(), 4);
  put_text(bytes, words);
  put_number(bytes, tables.size(), 8);
  bytes.insert(bytes.end(), tables.begin(), tables.end());
  index.write(bytes);
  for (const std::vector<std::byte>& one : runs) bytes.insert(bytes.end(), one.begin(), one.end());
  const std::vector<std::byte> sum = checksum(bytes);
  bytes.insert(bytes.end(), sum.begin(), sum.end());
  return CompressedTensor(std::move(bytes));
}

std::vector<float> decompress(const CompressedTensor& tensor) { return decompress_rows(tensor, 0, tensor.rows()); }

std::vector<float> decompress_rows(const CompressedTensor& tensor, std::int64_t first, std::int64_t count) {
  if (first < 0 || count < 0 || first > tensor.rows_ || count > tensor.rows_ - first)
    fail(ErrorKind::Usage, fmt::format("decompress: {} from {} on of a tensor of {}", plural(count, "row"), first,
                                       plural(tensor.rows_, "row")));
  const std::int64_t run = rows_of_run(*tensor.codec_), dim = tensor.dim_;
  const auto payload = tensor.bytes().subspan(tensor.payload_begin_);
  std::vector<float> result, decoded;
  result.reserve(static_cast<std::size_t>(count * dim));
  for (std::int64_t row = first; row < first + count;) {
    const std::int64_t index = row / run, begin = index * run;
    const std::int64_t end = std::min(begin + run, tensor.rows_), wanted = std::min(end, first + count);
    const auto block = static_cast<std::size_t>(index);
    decoded.resize(static_cast<std::size_t>((end - begin) * dim));
    tensor.codec_->decode(
        payload.subspan(static_cast<std::size_t>(tensor.index_.begin(block)),
                        static_cast<std::size_t>(tensor.index_.end(block) - tensor.index_.begin(block))),
        decoded);
    result.insert(result.end(), decoded.begin() + (row - begin) * dim, decoded.begin() + (wanted - begin) * dim);
    row = wanted;
  }
  return result;
}

}  // namespace kvq
