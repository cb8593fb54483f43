// SgdGroupUpdate, the formula and the order of operations of cuda/group_update.hpp.
#pragma once
#include "cuda/kernels/tensor_table.h"

namespace bngrad::cuda {

constexpr int kSgdInputs = 3, kSgdOutputs = 2;  // weight, gradient, buffer; new_weight, new_buffer

struct SgdUpdateArguments {
  const float *learning_rate, *gradient_scale;
  float momentum, weight_decay;
  uint32_t nesterov;
  TensorTable<kSgdInputs, kSgdOutputs> table;
};
static_assert(sizeof(SgdUpdateArguments) <= 4096);

BNGRAD_DEVICE void UpdateSgd(const SgdUpdateArguments& a) {
  const Chunk chunk = ChunkOfBlock(a.table);
  const TensorArrays<kSgdInputs, kSgdOutputs>& tensor = a.table.tensors[chunk.tensor];
  const float* in[kSgdInputs];
  float* out[kSgdOutputs];
  BNGRAD_UNROLL for (int k = 0; k < kSgdInputs; ++k) in[k] = static_cast<const float*>(tensor.inputs[k]);
  BNGRAD_UNROLL for (int k = 0; k < kSgdOutputs; ++k) out[k] = static_cast<float*>(tensor.outputs[k]);
  const float learning_rate = *a.learning_rate, gradient_scale = *a.gradient_scale;
  for (int64_t i = chunk.first + ThreadIndex(); i < chunk.end; i += kThreads) {
    const float weight = in[0][i];
    float g = in[1][i] * gradient_scale;
    if (a.weight_decay != 0) g = g + weight * a.weight_decay;
    float direction = g;
    if (a.momentum != 0) {
      const float buffer = in[2][i] * a.momentum + g;
      direction = a.nesterov != 0 ? g + buffer * a.momentum : buffer;
      if (out[1] != nullptr) out[1][i] = buffer;
    }
    if (out[0] != nullptr) out[0][i] = weight - direction * learning_rate;
  }
}

}  // namespace bngrad::cuda
