// Decode attention for head_dim 64: one file per head_dim, so that they compile side by side.
#include <kvq/kernels/cuda/decode_kernel.cuh>

namespace kvq::cuda {

template Status launch_decode_of<64>(int, const DecodeParams&, int, Stream);

}  // namespace kvq::cuda
