// What this CPU, and the operating system on it, can run.
#pragma once

namespace bngrad {

bool CpuHasAvx2();
bool CpuHasAvx512();

}  // namespace bngrad
