// The kernels for NEON, which every AArch64 CPU has. An island: see kernel.h.
#include <arm_neon.h>

#include "kernel.h"
#include "tuning.h"

namespace bngrad::neon {
namespace {

#include "verbs/neon.h"
// The algorithm, on these verbs.
#include "table-inl.h"

}  // namespace

extern const KernelTable kTable;
const KernelTable kTable = {MakeTypeKernels<float>(), MakeTypeKernels<double>(), MakeTypeKernels<Float16>(),
                            MakeTypeKernels<BFloat16>()};

}  // namespace bngrad::neon
