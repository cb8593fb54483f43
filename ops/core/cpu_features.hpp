// Instruction sets that this CPU and operating system support.
#pragma once

namespace bngrad {

bool CpuHasAvx2();  // AVX2, FMA and F16C
bool CpuHasAvx512();

}  // namespace bngrad
