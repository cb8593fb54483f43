// The CUDA kernels on the CPU: the kernels themselves, with a context for each thread of a block, which
// changes at barriers. Blocks run one after the other.
#pragma once
#include <cstdint>
#include <string>

namespace bngrad::cuda {

using Kernel = void (*)(const void* argument);

// A kernel of a module, or null if there is none.
Kernel FindKernel(const std::string& module, const std::string& name);

// Not by two threads at once.
void RunGrid(Kernel kernel, uint32_t blocks, uint32_t splits, const void* argument);

}  // namespace bngrad::cuda
