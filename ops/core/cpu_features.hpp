// What this CPU, and the operating system on it, can run.
#pragma once

namespace bngrad {

bool CpuHasAvx2();  // and F16C, which every CPU with AVX2 has had so far
bool CpuHasAvx512();
bool CpuHasAvx512Bf16();  // and AVX-512F, BW, VL and VBMI
bool CpuIsZen4();         // of those that have them

}  // namespace bngrad
