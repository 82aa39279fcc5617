#pragma once
// Arithmetic on sizes that a file claims: every product and sum is checked, because a damaged header can claim
// anything.

#include <cstdint>
#include <optional>
#include <span>

namespace kvq {

inline std::optional<std::uint64_t> checked_multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

/// Number of elements of a shape; nullopt when it does not fit a signed 64-bit integer. The empty shape has one
/// element.
inline std::optional<std::int64_t> checked_elements(std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) {
    if (__builtin_mul_overflow(elements, size, &elements)) return std::nullopt;
  }
  return elements;
}

/// Smallest multiple of `alignment` (a power of two) that is not below `value`.
inline std::optional<std::uint64_t> checked_align(std::uint64_t value, std::uint64_t alignment) {
  const auto padded = checked_add(value, alignment - 1);
  if (!padded) return std::nullopt;
  return *padded & ~(alignment - 1);
}

}  // namespace kvq
