// The kernels for AVX2. An island: see kernel.h.
#include <immintrin.h>

#include "kernel.h"
#include "tuning.h"

namespace bngrad::avx2 {
namespace {

#include "verbs/avx2.h"
// The algorithm, on these verbs.
#include "table-inl.h"

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {MakeTypeKernels<float>(), MakeTypeKernels<double>(), MakeTypeKernels<Float16>(),
                            MakeTypeKernels<BFloat16>()};

}  // namespace bngrad::avx2
