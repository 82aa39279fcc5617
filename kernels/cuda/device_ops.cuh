#pragma once
// The PTX that the kernels need, one small function each.
//
// Copies into shared memory: from sm_90 on one lane hands the copy to the bulk copy engine, before that all lanes of
// the warp issue 16-byte asynchronous copies. Either way an mbarrier counts kCopyArrivals arrivals and completes when
// the bytes are there.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvq::cuda {

/// Where a block's dynamic shared memory begins; from sm_90 on the system takes what lies before.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kBulkCopies = false;
inline constexpr int kTablesAt = 0;
#else
inline constexpr bool kBulkCopies = true;
inline constexpr int kTablesAt = 1024;
#endif
inline constexpr int kCopyArrivals = kBulkCopies ? 1 : 32;

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void barrier_init(std::uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals));
}

/// After all inits, before any other thread or the copy engine uses them (with a block barrier).
__device__ __forceinline__ void barrier_init_fence() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

__device__ __forceinline__ void barrier_arrive(std::uint64_t* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(shared_address(barrier))
               : "memory");
}

/// Until phase `parity` of the barrier is complete.
__device__ __forceinline__ void barrier_wait(std::uint64_t* barrier, unsigned parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n@!done bra again;\n}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
#endif
}

/// Announces `bytes` of warp_copy() calls that follow and complete this phase. All lanes call it.
__device__ __forceinline__ void copy_expect(std::uint64_t* barrier, std::uint32_t bytes, int lane) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile(
        "{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
  }
#endif
}

/// 16-byte aligned, a multiple of 16 bytes, global to shared. All lanes call it.
__device__ __forceinline__ void warp_copy(void* to, const void* from, std::uint32_t bytes, std::uint64_t* barrier,
                                          int lane) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  if (lane == 0) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
  }
#else
  for (std::uint32_t at = lane * 16; at < bytes; at += 512) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to) + at),
                 "l"(static_cast<const char*>(from) + at)
                 : "memory");
  }
#endif
}

/// After the last warp_copy() of a phase. All lanes call it.
__device__ __forceinline__ void copy_commit(std::uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}

/// The kernel that follows in the stream may be set up from now on, if it was launched to.
__device__ __forceinline__ void allow_next_kernel() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Until the kernel before has ended and its results are there.
__device__ __forceinline__ void wait_for_kernel_before() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// c += a * b: a 16 x 16 fp16 by rows, b 16 x 8 fp16 by columns, c 16 x 8 fp32.
__device__ __forceinline__ void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                             std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Four 8 x 8 matrices of 16-bit elements from shared memory, transposed; lane i gives where row i % 8 of matrix i / 8
/// is.
__device__ __forceinline__ void load_transposed(std::uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(shared_address(row))
               : "memory");
}

/// 2^x, subnormal results flushed to 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

__device__ __forceinline__ __half2 as_half2(std::uint32_t x) { return *reinterpret_cast<__half2*>(&x); }
__device__ __forceinline__ std::uint32_t as_bits(__half2 x) { return *reinterpret_cast<std::uint32_t*>(&x); }
__device__ __forceinline__ std::uint32_t pack_halves(float low, float high) {
  return as_bits(__floats2half2_rn(low, high));
}
__device__ __forceinline__ float low_float(std::uint32_t x) { return __low2float(as_half2(x)); }
__device__ __forceinline__ float high_float(std::uint32_t x) { return __high2float(as_half2(x)); }
__device__ __forceinline__ float half_bits_to_float(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

/// Fraction of a turn that an angle of `position` steps has, in units of 2^-32: exact, whatever the position.
__device__ __forceinline__ std::uint32_t turn_fraction(std::uint64_t turns_per_step, std::uint32_t position) {
  return static_cast<std::uint32_t>((turns_per_step * position) >> 32);
}

/// cos and sin of turn_fraction(), to 2^-20.
__device__ __forceinline__ float2 cos_sin_of(std::uint32_t fraction) {
  const float radians =
      static_cast<float>(static_cast<std::int32_t>(fraction)) * 1.4629180792671596e-9f;  // 2 pi / 2^32
  float2 result;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(result.x) : "f"(radians));
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(result.y) : "f"(radians));
  return result;
}

}  // namespace kvq::cuda
