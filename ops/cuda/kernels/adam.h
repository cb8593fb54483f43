// AdamUpdate and AdamGroupUpdate, the formula and the order of operations of core/adam.hpp; the bits are
// those of the CPU.
#pragma once
#include "cuda/kernels/tensor_table.h"

namespace bngrad::cuda {

struct AdamUpdateArguments {
  const double* coefficients;  // kAdamCoefficients, as in core/adam.hpp
  TensorTable<kAdamInputs, kAdamOutputs> table;
};
static_assert(sizeof(AdamUpdateArguments) <= 4096);

template <class T>
BNGRAD_DEVICE void UpdateAdam(const AdamUpdateArguments& a) {
  T c[kAdamCoefficients];
  BNGRAD_UNROLL for (int k = 0; k < kAdamCoefficients; ++k) c[k] = static_cast<T>(a.coefficients[k]);
  const Chunk chunk = ChunkOfBlock(a.table);
  const TensorArrays<kAdamInputs, kAdamOutputs>& tensor = a.table.tensors[chunk.tensor];
  for (int64_t i = chunk.first + ThreadIndex(); i < chunk.end; i += kThreads) {
    T in[kAdamInputs];
    BNGRAD_UNROLL for (int k = 0; k < kAdamInputs; ++k) in[k] = static_cast<const T*>(tensor.inputs[k])[i];
    const T g = in[1] * c[0] + c[1] * in[0];
    const T m = in[2] + c[3] * (g - in[2]);
    const T v = c[4] * in[3] + c[5] * g * g;
    const T out[kAdamOutputs] = {in[0] * c[2] - c[6] * m / (SquareRoot(v) / c[7] + c[8]), m, v};
    BNGRAD_UNROLL for (int k = 0; k < kAdamOutputs; ++k) {
      if (tensor.outputs[k] != nullptr) static_cast<T*>(tensor.outputs[k])[i] = out[k];
    }
  }
}

}  // namespace bngrad::cuda
