// Instruction sets that this CPU and operating system support.
#pragma once

namespace bngrad {

bool CpuHasAvx2();  // AVX2, FMA and F16C
bool CpuHasAvx512();
bool CpuHasAvx512Bf16();  // and AVX-512F, BW, VL and VBMI
bool CpuIsZen4();         // of those that have them

}  // namespace bngrad
