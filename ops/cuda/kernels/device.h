// The parts of CUDA that device code needs, without its headers: clang compiles kernels to PTX where no
// toolkit is. Other compilers read these files for the arguments of kernels; the tests compile the kernels
// themselves for the host, and define the functions that are only declared here.
#pragma once
#include "kernels/kernel.h"

#if defined(__CUDA__)
#define BNGRAD_DEVICE static inline __attribute__((device, always_inline))
#define BNGRAD_DEVICE_CALL static __attribute__((device, noinline))
#define BNGRAD_DEVICE_MEMBER __attribute__((device, always_inline))
#define BNGRAD_DEVICE_STATIC static __attribute__((device, always_inline))
#define BNGRAD_SHARED static __attribute__((shared))
#define BNGRAD_UNROLL _Pragma("unroll")
#define BNGRAD_KERNEL(name, Arguments, body) \
  extern "C" __attribute__((global, launch_bounds(kThreads))) void name(const Arguments a) { body; }
#else
#define BNGRAD_DEVICE inline
#define BNGRAD_DEVICE_CALL inline
#define BNGRAD_DEVICE_MEMBER
#define BNGRAD_DEVICE_STATIC static
#define BNGRAD_SHARED static
#define BNGRAD_UNROLL
#endif

namespace bngrad::cuda {

#if defined(BNGRAD_CUDA_THREADS)
constexpr int kThreads = BNGRAD_CUDA_THREADS;  // fewer for the tests
#else
constexpr int kThreads = 256;  // of a block
#endif

// A number of loop iterations that the compiler knows.
template <int kNumber>
struct Count {
  static constexpr int kCount = kNumber;
};

#if defined(__CUDA__)
BNGRAD_DEVICE uint32_t ThreadIndex() { return __nvvm_read_ptx_sreg_tid_x(); }
BNGRAD_DEVICE uint32_t BlockIndexX() { return __nvvm_read_ptx_sreg_ctaid_x(); }
BNGRAD_DEVICE uint32_t BlockIndexY() { return __nvvm_read_ptx_sreg_ctaid_y(); }
BNGRAD_DEVICE void Barrier() { __syncthreads(); }
BNGRAD_DEVICE double SquareRoot(double value) { return __nvvm_sqrt_rn_d(value); }
BNGRAD_DEVICE float SquareRoot(float value) { return __nvvm_sqrt_rn_f(value); }
BNGRAD_DEVICE uint32_t HighProduct(uint32_t a, uint32_t b) { return __nvvm_mulhi_ui(a, b); }
#else
uint32_t ThreadIndex();
uint32_t BlockIndexX();
uint32_t BlockIndexY();
void Barrier();
double SquareRoot(double value);
float SquareRoot(float value);
uint32_t HighProduct(uint32_t a, uint32_t b);  // a*b >> 32
#endif

BNGRAD_DEVICE bool IsFinite(double value) { return value - value == 0; }

}  // namespace bngrad::cuda
