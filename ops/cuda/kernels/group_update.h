// The updates of any number of weights: the formula of each is in cuda/kernels/adam.h, lion.h, rmsprop.h or
// sgd.h, and has its numbers in T once they are loaded.
#pragma once
#include "cuda/kernels/tensor_table.h"

namespace bngrad::cuda {

template <class Formula>
struct GroupUpdateArguments {
  using Table = TensorTable<Formula::kInputs, Formula::kOutputs>;  // weight, gradient, slots; weight, slots

  Formula formula;
  const bool* is_applied;  // false: the weights and slots stay as they are; null: true
  Table table;
};

// What the formulas of float have in common, in the memory of the device.
struct GroupScalars {
  const float *learning_rate, *gradient_scale;
};

template <class T, class Formula>
BNGRAD_DEVICE void UpdateGroup(const GroupUpdateArguments<Formula>& a) {
  static_assert(sizeof(a) <= 4096);
  constexpr int kInputs = Formula::kInputs, kOutputs = Formula::kOutputs;
  const Chunk chunk = ChunkOfBlock(a.table);
  const TensorArrays<kInputs, kOutputs>& tensor = a.table.tensors[chunk.tensor];
  const bool is_applied = a.is_applied == nullptr || *a.is_applied;
  const typename Formula::template Loaded<T> update(a.formula);
  for (int64_t i = chunk.first + ThreadIndex(); i < chunk.end; i += kThreads) {
    T in[kInputs], out[kOutputs];
    BNGRAD_UNROLL for (int k = 0; k < kInputs; ++k) {
      in[k] = tensor.inputs[k] == nullptr ? T(0) : static_cast<const T*>(tensor.inputs[k])[i];
    }
    if (is_applied) {
      update(in, out);
    } else {
      BNGRAD_UNROLL for (int k = 0; k < kOutputs; ++k) out[k] = in[k == 0 ? 0 : k + 1];
    }
    BNGRAD_UNROLL for (int k = 0; k < kOutputs; ++k) {
      if (tensor.outputs[k] != nullptr) static_cast<T*>(tensor.outputs[k])[i] = out[k];
    }
  }
}

}  // namespace bngrad::cuda
