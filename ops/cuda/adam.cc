#include "cuda/adam.hpp"

#include <algorithm>

#include "cuda/kernels/adam.h"

namespace bngrad::cuda {

void AdamUpdate(const AdamArguments& a, Device& device) {
  if (a.count == 0) return;
  constexpr int64_t kBlocksPerProcessor = 8;
  const int64_t blocks =
      std::min((a.count + kThreads - 1) / kThreads, kBlocksPerProcessor * device.processors());
  AdamUpdateArguments arguments = {a.count, {}, a.coefficients, {}, static_cast<uint32_t>(blocks)};
  std::copy_n(a.inputs, kAdamInputs, arguments.inputs);
  std::copy_n(a.outputs, kAdamOutputs, arguments.outputs);
  device.Launch(a.type, "adam_update", arguments.blocks, 1, &arguments);
}

}  // namespace bngrad::cuda
