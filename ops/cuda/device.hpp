// The device that runs kernels: NVIDIA's driver, or an emulation.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/element_type.hpp"
#include "cuda/cudnn.hpp"
#include "cuda/kernels/device.h"

namespace bngrad::cuda {

// Calls return before their work is done, which is in the order of the calls.
class Device {
 public:
  virtual ~Device() = default;

  // The number of multiprocessors.
  virtual int processors() const = 0;

  // The blocks of a kernel whose threads step over `count` elements, a grid at a time.
  uint32_t BlocksOfLoop(int64_t count) const {
    constexpr int64_t kBlocksPerProcessor = 8;
    return static_cast<uint32_t>(
        std::min((count + kThreads - 1) / kThreads, kBlocksPerProcessor * processors()));
  }

  // Memory of the device until the op returns.
  virtual void* Scratch(size_t bytes) = 0;

  // Starts a kernel of a module (cuda/kernels/kernels.cu) with its one argument, a struct.
  virtual void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
                      const void* argument) = 0;

  // Sets memory to zero.
  virtual void Zero(void* memory, size_t bytes) = 0;

  // cuDNN for the stream of the run. Throws Failure.
  virtual CudnnRun cudnn() = 0;
};

}  // namespace bngrad::cuda
