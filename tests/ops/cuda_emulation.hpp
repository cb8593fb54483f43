// The device of cuda/batch_norm.hpp on the CPU: the kernels themselves, with a context for each thread of a
// block, which changes at barriers. Blocks run one after the other.
#pragma once
#include <memory>
#include <vector>

#include "cuda/batch_norm.hpp"

namespace bngrad::cuda {

class EmulatedDevice final : public Device {
 public:
  explicit EmulatedDevice(int processors) : processors_(processors) {}
  int processors() const override { return processors_; }
  void* Scratch(size_t bytes) override;
  void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
              const void* argument) override;

 private:
  const int processors_;
  std::vector<std::unique_ptr<unsigned char[]>> scratch_;
};

}  // namespace bngrad::cuda
