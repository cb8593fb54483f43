// What this CPU, and the operating system on it, can run.
#pragma once
#include <cstddef>

namespace bngrad {

// How many threads run at once: counted at the first call, and at least one.
size_t CpuCores();

bool CpuHasAvx2();  // and F16C, which every CPU with AVX2 has had so far
bool CpuHasAvx512();
bool CpuHasAvx512Bf16();  // and AVX-512F, BW, VL and VBMI
bool CpuIsZen4();         // of those that have them

}  // namespace bngrad
