#pragma once
// HDF5's standard filters "shuffle" and "deflate" on one chunk, by ourselves: the library's own pipeline has one
// thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvq::h5 {

/// Fast; the shuffled mantissa bytes hardly compress at any level.
inline constexpr int kDeflateLevel = 1;

/// `data`, padded with zeros to `chunk_bytes`, as HDF5 stores it behind both filters. Thread-safe.
std::vector<std::byte> shuffle_and_deflate(std::span<const std::byte> data, std::uint64_t chunk_bytes,
                                           std::size_t element_bytes);

}  // namespace kvq::h5
