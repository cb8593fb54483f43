// The kernels for any CPU. An island: see kernel.h.
#include <math.h>

#include <cstring>

#include "kernel.h"
#include "tuning.h"

namespace bngrad::scalar {
namespace {

#include "verbs/scalar.h"
// The algorithm, on these verbs.
#include "table-inl.h"

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {MakeTypeKernels<float>(), MakeTypeKernels<double>(), MakeTypeKernels<Float16>(),
                            MakeTypeKernels<BFloat16>()};

}  // namespace bngrad::scalar
