#pragma once
// How much memory this process may still take.

#include <cstdint>

namespace kvq {

/// Bytes that can be allocated without swapping or meeting a limit: the kernel's MemAvailable, and what the process's
/// control group (version 1 or 2) leaves.
std::int64_t available_memory_bytes();

/// From now on every allocation of 8 MiB or more of this process is a mapping of its own, returned to the system as
/// soon as it is freed (glibc; elsewhere nothing changes). By itself glibc takes what is smaller than the largest block
/// freed so far from its heap, where the buffers of one layer leave gaps that the next one's do not fit: of two runs
/// over the same windows one then takes a quarter more than the other. Costs page faults: some 4 % of time.
void map_large_allocations();

}  // namespace kvq
