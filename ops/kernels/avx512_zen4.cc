// The kernels of avx512_bf16.cc as Zen 4 likes them. An island: see kernel.h.
#include <immintrin.h>

#include "kernel.h"

namespace bngrad::avx512_zen4 {
namespace {

#include "simd_avx512.h"
#include "simd_tuned_zen4.h"
#include "table-inl.h"

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {MakeTypeKernels<float>(), MakeTypeKernels<double>(), MakeTypeKernels<Float16>(),
                            MakeTypeKernels<BFloat16>()};

}  // namespace bngrad::avx512_zen4
