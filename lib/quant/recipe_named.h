#pragma once
// Methods of the literature by name. Each is a recipe like any other, which its long form shows.
//
//   kiviB     KIVI (Liu et al., arXiv 2402.02750): keys after RoPE, per channel in groups of 32 tokens, 128 of them
//             quantized whenever 128 exact ones are full; values per token in groups of 32 channels, the last 128
//             tokens exact. `recent=N` stands for both 128, its residual length; `group=N` for both 32.
//   atomB     Atom (Zhao et al., arXiv 2310.19102): keys before RoPE and values per token in groups of 128 channels,
//             with an fp16 scale and a zero point of B bits.
//   flexgenB  FlexGen (Sheng et al., arXiv 2303.06865): keys and values per token in groups of 64 channels. Its models
//             have no RoPE; here it comes after it, on what an attention kernel reads.
//   turboB    TurboQuant (Zandieh et al., arXiv 2504.19874): keys before RoPE and values by head vectors, each its norm
//             and the codes of its rotated direction.
//   scalarB, deltaB, pq   codecs of head vectors (kvq/vector/vector_recipe.h); keys before RoPE
//   q4_0, q8_0, fp8   what llama.cpp and others keep, after RoPE
//
// None keeps sinks unless told so, but for scalarB, deltaB and pq, which keep one.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <kvq/quant/recipe.h>

namespace kvq {

struct NamedMethod {
  SideRecipe key, value;
  int sinks = 0;
  bool residual = false;  ///< recent=N is KIVI's residual length
};

std::optional<NamedMethod> find_named_method(std::string_view name);

/// All of them, written out.
const std::vector<std::string>& named_methods();

}  // namespace kvq
