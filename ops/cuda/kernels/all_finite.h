// IsAllFinite: whether every element of any number of tensors is finite.
#pragma once
#include "cuda/kernels/tensor_table.h"

namespace bngrad::cuda {

struct AllFiniteArguments {
  bool* result;
  TensorTable<1, 0> table;  // without tensors: the result is true; else false if an element is not finite
};
static_assert(sizeof(AllFiniteArguments) <= 4096);

// Threads that write to the result all write the same.
template <class T>
BNGRAD_DEVICE void CheckFinite(const AllFiniteArguments& a) {
  if (a.table.count == 0) {
    if (ThreadIndex() == 0) *a.result = true;
    return;
  }
  const Chunk chunk = ChunkOfBlock(a.table);
  const T* const data = static_cast<const T*>(a.table.tensors[chunk.tensor].inputs[0]);
  bool all_finite = true;
  for (int64_t i = chunk.first + ThreadIndex(); i < chunk.end; i += kThreads) {
    all_finite = all_finite && IsFinite(static_cast<double>(data[i]));
  }
  if (!all_finite) *a.result = false;
}

}  // namespace bngrad::cuda
