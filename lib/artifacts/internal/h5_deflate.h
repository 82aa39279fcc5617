#pragma once
// HDF5's standard filters "shuffle" and "deflate" on one chunk: the library's own pipeline has a single thread.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvq::h5 {

/// Higher levels look for repeated strings, of which floating-point numbers have none.
inline constexpr int kDeflateLevel = 1;

/// `data`, padded with zeros to `chunk_bytes`, as HDF5 stores it behind both filters. Thread-safe.
std::vector<std::byte> shuffle_and_deflate(std::span<const std::byte> data, std::uint64_t chunk_bytes,
                                           std::size_t element_bytes);

}  // namespace kvq::h5
