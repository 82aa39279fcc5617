#pragma once
// The two tensors of a KV cache. Arrays indexed by side are in this order.

#include <array>

namespace kvq {

enum class Side { Key = 0, Value = 1 };

inline constexpr std::array<Side, 2> kSides = {Side::Key, Side::Value};

inline const char* side_name(Side side) { return side == Side::Key ? "key" : "value"; }

}  // namespace kvq
