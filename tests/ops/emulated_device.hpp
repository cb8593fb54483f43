// A device whose memory is the CPU's, and whose kernels run in the emulation.
#pragma once
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/device.hpp"
#include "cuda/ptx.hpp"
#include "cuda_emulation.hpp"

namespace bngrad::cuda {

class EmulatedDevice final : public Device {
 public:
  int processors() const override { return 5; }  // more than blocks, so that channels are divided

  void* Scratch(size_t bytes) override {
    scratch_.emplace_back(new unsigned char[bytes + 1]);
    std::memset(scratch_.back().get(), 0xff, bytes);  // NaN: nothing may rely on zeros
    return scratch_.back().get();
  }

  void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
              const void* argument) override {
    RunGrid(FindKernel(ModuleText(module), kernel), blocks, splits, argument);
  }

  void Zero(void* memory, size_t bytes) override { std::memset(memory, 0, bytes); }
  CudnnRun cudnn() override { throw Failure("there is no cuDNN"); }

 private:
  std::vector<std::unique_ptr<unsigned char[]>> scratch_;
};

}  // namespace bngrad::cuda
