#pragma once
// Threads of the tensor library: process-wide, so applications set them once, before the first model is loaded.

namespace kvq {

/// Matrix products and element-wise work use `threads` threads (>= 1, else throws Usage); nothing else runs beside
/// them. Throws Memory where the system does not allow so many.
void set_compute_threads(int threads);

}  // namespace kvq
