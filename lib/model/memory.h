#pragma once
// How much memory this process may still take.

#include <cstdint>

namespace kvq {

/// Bytes that can be allocated without swapping or meeting a limit: the kernel's MemAvailable, and what the process's
/// control group (version 1 or 2) leaves.
std::int64_t available_memory_bytes();

}  // namespace kvq
