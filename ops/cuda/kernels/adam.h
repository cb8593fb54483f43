// AdamUpdate, the formula and the order of operations of core/adam.hpp; the bits are those of the CPU.
#pragma once
#include "cuda/kernels/device.h"

namespace bngrad::cuda {

struct AdamUpdateArguments {
  int64_t count;
  const void* inputs[kAdamInputs];  // weight, gradient, exp_avg, exp_avg_sq
  const double* coefficients;       // kAdamCoefficients, as in core/adam.hpp
  void* outputs[kAdamOutputs];      // null: not wanted
  uint32_t blocks;
};

template <class T>
BNGRAD_DEVICE void UpdateAdam(const AdamUpdateArguments& a) {
  T c[kAdamCoefficients];
  BNGRAD_UNROLL for (int k = 0; k < kAdamCoefficients; ++k) c[k] = static_cast<T>(a.coefficients[k]);
  const int64_t step = static_cast<int64_t>(a.blocks) * kThreads;
  for (int64_t i = static_cast<int64_t>(BlockIndexX()) * kThreads + ThreadIndex(); i < a.count; i += step) {
    T in[kAdamInputs];
    BNGRAD_UNROLL for (int k = 0; k < kAdamInputs; ++k) in[k] = static_cast<const T*>(a.inputs[k])[i];
    const T g = in[1] * c[0] + c[1] * in[0];
    const T m = in[2] + c[3] * (g - in[2]);
    const T v = c[4] * in[3] + c[5] * g * g;
    const T out[kAdamOutputs] = {in[0] * c[2] - c[6] * m / (SquareRoot(v) / c[7] + c[8]), m, v};
    BNGRAD_UNROLL for (int k = 0; k < kAdamOutputs; ++k) {
      if (a.outputs[k] != nullptr) static_cast<T*>(a.outputs[k])[i] = out[k];
    }
  }
}

}  // namespace bngrad::cuda
