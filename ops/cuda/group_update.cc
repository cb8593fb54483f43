#include "cuda/group_update.hpp"

namespace bngrad::cuda {
namespace {

// Starts a kernel for as many tensors as its argument has room for, until all are done.
template <class Arguments, class Tensor>
void LaunchAll(ElementType type, const char* kernel, Arguments& arguments, const std::vector<Tensor>& tensors,
               Device& device) {
  auto& table = arguments.table;
  uint32_t blocks = 0;
  const auto launch = [&] {
    if (blocks > 0) device.Launch(type, kernel, blocks, 1, &arguments);
    table.count = blocks = 0;
  };
  for (const Tensor& tensor : tensors) {
    if (tensor.count == 0) continue;
    if (table.count == table.kCapacity) launch();
    table.tensors[table.count] = tensor;
    table.first_blocks[table.count++] = blocks;
    blocks += static_cast<uint32_t>((tensor.count + table.kChunk - 1) / table.kChunk);
  }
  launch();
}

}  // namespace

void AdamUpdate(ElementType type, const double* coefficients, const std::vector<AdamTensor>& tensors,
                Device& device) {
  AdamUpdateArguments arguments = {};
  arguments.coefficients = coefficients;
  LaunchAll(type, "adam_update", arguments, tensors, device);
}

void SgdUpdate(const SgdOptions& options, const float* learning_rate, const float* gradient_scale,
               const std::vector<SgdTensor>& tensors, Device& device) {
  SgdUpdateArguments arguments = {
      learning_rate, gradient_scale, options.momentum, options.weight_decay, options.nesterov ? 1u : 0, {}};
  LaunchAll(ElementType::kFloat, "sgd_update", arguments, tensors, device);
}

}  // namespace bngrad::cuda
