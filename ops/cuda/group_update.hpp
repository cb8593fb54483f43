// The updates of any number of weights on a device, and a check of their gradients. The scalars and the
// condition are in its memory, too.
#pragma once
#include <vector>

#include "cuda/device.hpp"
#include "cuda/kernels/adam.h"
#include "cuda/kernels/all_finite.h"
#include "cuda/kernels/lion.h"
#include "cuda/kernels/rmsprop.h"
#include "cuda/kernels/sgd.h"

namespace bngrad::cuda {

template <class Formula>
using GroupTensor = TensorArrays<Formula::kInputs, Formula::kOutputs>;

// A step for each element. If *is_applied is false, weights and slots stay as they are; null is true.
// AdamFormula is that of core/adam.hpp, for float or double. The others are for float, with one rounding for
// each operation, as the functions of their ops. In all of them
//   g          = gradient*gradient_scale, plus weight_decay*weight if that is not 0
//   new_weight = weight - learning_rate*d
// SgdFormula:
//   new_buffer = momentum*buffer + g
//   d is new_buffer; with Nesterov momentum g + momentum*new_buffer; without momentum, when there are no
//   buffers, g
// RmspropFormula:
//   new_square_avg      = alpha*square_avg + one_minus_alpha*g*g
//   new_grad_avg        = grad_avg + one_minus_alpha*(g - grad_avg)                 if it is centered
//   quotient            = g/(sqrt(new_square_avg - new_grad_avg^2) + eps)           else without new_grad_avg
//   new_momentum_buffer = momentum*momentum_buffer + quotient                       with momentum
//   d is new_momentum_buffer; without momentum the quotient. A negative difference below the root is 0.
// LionFormula, where g has no weight_decay:
//   d           = sign(beta1*exp_avg + one_minus_beta1*g), plus weight_decay*weight if that is not 0
//   new_exp_avg = beta2*exp_avg + one_minus_beta2*g
template <class Formula>
void GroupUpdate(ElementType type, const Formula& formula, const bool* is_applied,
                 const std::vector<GroupTensor<Formula>>& tensors, Device& device);

using FiniteTensor = TensorArrays<1, 0>;
// Sets *result to whether all elements of the tensors, of float or double, are finite.
void AllFinite(ElementType type, const std::vector<FiniteTensor>& tensors, bool* result, Device& device);

}  // namespace bngrad::cuda
