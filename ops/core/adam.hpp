// AdamUpdate: a step of Adam or AdamW, for each element, with g the gradient after scaling and decay:
//   g              = gradient*gradient_scale + l2_penalty*weight
//   new_exp_avg    = exp_avg + (1 - beta1)*(g - exp_avg)
//   new_exp_avg_sq = beta2*exp_avg_sq + ((1 - beta2)*g)*g
//   new_weight     = weight*weight_factor
//                    - (step_size*new_exp_avg)/(sqrt(new_exp_avg_sq)/sqrt_bias_correction2 + epsilon)
// Computed in the type of the elements, with one rounding for each operation.
#pragma once
#include <cstdint>

#include "core/element_type.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

struct AdamArguments {
  ElementType type;  // float or double
  int64_t count;
  const void* inputs[kAdamInputs];  // weight, gradient, exp_avg, exp_avg_sq
  // gradient_scale, l2_penalty, weight_factor, 1 - beta1, beta2, 1 - beta2, step_size, sqrt_bias_correction2,
  // epsilon; rounded to the type of the elements
  const double* coefficients;
  void* outputs[kAdamOutputs];  // new_weight, new_exp_avg, new_exp_avg_sq; null: not computed
};

void AdamUpdate(const AdamArguments& arguments, const KernelTable& table, Parallel& parallel);

}  // namespace bngrad
