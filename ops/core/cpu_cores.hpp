// How many threads of this process can run at once.
#pragma once
#include <cstddef>

namespace bngrad {

// The CPUs of the machine, less those that the calling thread may not run on and those that the quota of a
// container takes away: counted at the first call, and at least one.
size_t CpuCores() noexcept;

}  // namespace bngrad
