// The ops of core/adam.hpp, and of SGD, for any number of weights on a device. The coefficients and the
// scalars are in its memory, too.
#pragma once
#include <vector>

#include "cuda/device.hpp"
#include "cuda/kernels/adam.h"
#include "cuda/kernels/sgd.h"

namespace bngrad::cuda {

using AdamTensor = TensorArrays<kAdamInputs, kAdamOutputs>;
void AdamUpdate(ElementType type, const double* coefficients, const std::vector<AdamTensor>& tensors,
                Device& device);

// A step of SGD, for each element:
//   g          = gradient*gradient_scale, plus weight_decay*weight if that is not 0
//   new_buffer = momentum*buffer + g
//   new_weight = weight - learning_rate*d
// d is new_buffer; with Nesterov momentum g + momentum*new_buffer; without momentum, when there are no
// buffers, g. Computed in float, with one rounding for each operation, as the function of the op.
struct SgdOptions {
  float momentum, weight_decay;
  bool nesterov;
};
using SgdTensor = TensorArrays<kSgdInputs, kSgdOutputs>;
void SgdUpdate(const SgdOptions& options, const float* learning_rate, const float* gradient_scale,
               const std::vector<SgdTensor>& tensors, Device& device);

}  // namespace bngrad::cuda
