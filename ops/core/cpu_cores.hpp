// The number of threads of this process that can run at once.
#pragma once
#include <cstddef>

namespace bngrad {

// The machine's CPUs, limited by the affinity of the calling thread (Linux) or of the process (Windows, where
// more than 64 CPUs are several processor groups, of which this is one) and by the CPU quota of a Linux
// container. macOS has neither.
// Computed at the first call; at least 1.
size_t CpuCores() noexcept;

}  // namespace bngrad
