// The kernels for any CPU. An island: see kernel.h.
#include <cstring>

#include "kernel.h"

namespace bngrad::scalar {
namespace {

#include "simd_scalar.h"
#include "simd_tuned_usual.h"
#include "table-inl.h"

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {MakeTypeKernels<float>(), MakeTypeKernels<double>(), MakeTypeKernels<Float16>(),
                            MakeTypeKernels<BFloat16>()};

}  // namespace bngrad::scalar
