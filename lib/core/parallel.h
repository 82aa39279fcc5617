#pragma once
// Splits independent work over threads. Results must not depend on the number of threads: give each index its own
// output.

#include <cstdint>
#include <functional>

namespace kvq {

/// Calls body(index) for every index in [0, count), on at most `threads` threads; indices are handed out one by one.
/// The first exception stops the hand-out and is rethrown here.
void parallel_for(std::int64_t count, int threads, const std::function<void(std::int64_t index)>& body);

/// Calls body(begin, end) for consecutive ranges of at most `grain` indices.
void parallel_ranges(std::int64_t count, std::int64_t grain, int threads,
                     const std::function<void(std::int64_t begin, std::int64_t end)>& body);

/// Starts `threads` threads at once and ends them. Throws Memory when the system refuses one: for libraries that wait
/// for ever, or end the process, when that happens to them.
void require_threads(int threads);

/// Number of cores this process may use.
int available_cores();

}  // namespace kvq
