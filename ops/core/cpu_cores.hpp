// The number of threads of this process that can run at once.
#pragma once
#include <cstddef>

namespace bngrad {

// The machine's CPUs, limited by the affinity of the calling thread and by the CPU quota of the container.
// Computed at the first call; at least 1.
size_t CpuCores() noexcept;

}  // namespace bngrad
