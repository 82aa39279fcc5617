#pragma once
// Threads of the tensor library: process-wide, so applications set them once, before the first model is loaded.

namespace kvq {

/// Matrix products and element-wise work use `threads` threads (>= 1, else throws Usage); nothing else runs beside
/// them. Throws Memory where the system does not allow so many.
void set_compute_threads(int threads);

/// libtorch's exp, log and the like on the CPU (MKL's vector functions) settle how exact they are when they are first
/// called. Two threads that call first at once may compute with that half settled: 1e-4 off in one process of sixty.
/// Calls them once, on this thread; load_model() does so before others work.
void settle_vector_functions();

}  // namespace kvq
