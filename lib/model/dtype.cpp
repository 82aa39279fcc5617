#include <fmt/format.h>

#include <kvq/core/error.h>
#include <kvq/model/model.h>

namespace kvq {

Dtype parse_dtype(const std::string& word) {
  if (word == "fp32") return Dtype::Fp32;
  if (word == "bf16") return Dtype::Bf16;
  fail(ErrorKind::Usage, fmt::format("--dtype '{}' is unknown; known: fp32, bf16", word));
}

const char* dtype_name(Dtype dtype) { return dtype == Dtype::Fp32 ? "fp32" : "bf16"; }

}  // namespace kvq
