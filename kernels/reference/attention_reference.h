#pragma once
// Attention by its definition, in double precision. All arrays `[tokens, heads or kv_heads, head_dim]`, last index
// fastest; query head h belongs to kv head h / (heads / kv_heads).

#include <cstdint>
#include <span>
#include <vector>

namespace kvq::reference {

struct Rope {
  /// Radians per position of each pair (channel j, channel j + n), n the size of this. Other channels pass.
  std::vector<double> inverse_frequencies;
  bool keys_are_rotated = false;  ///< then only the queries are
};

/// One head: rotates `x`, `[head_dim]`, by the angles of `position`.
void rotate(std::span<double> x, const Rope& rope, double position);

struct Heads {
  int heads = 0, kv_heads = 0, head_dim = 0;
};

/// Queries of positions first_position … over the keys of positions 0 … (before RoPE), each over those up to its own.
/// Softmax of scores / sqrt(head_dim).
std::vector<double> attention(const Heads& shape, std::span<const double> query, std::int64_t first_position,
                              std::span<const double> keys, std::span<const double> values, const Rope& rope);

/// One query at the last position of `keys`: `[heads, head_dim]`.
std::vector<double> decode_attention(const Heads& shape, std::span<const double> query, std::span<const double> keys,
                                     std::span<const double> values, const Rope& rope);

}  // namespace kvq::reference
