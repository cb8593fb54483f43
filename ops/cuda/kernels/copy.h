// Copies between a tensor and a box of a larger one.
#pragma once
#include "cuda/kernels/elements.h"
#include "cuda/kernels/view.h"

namespace bngrad::cuda {

struct CopyBoxArguments {
  int64_t count;
  ViewDims from_dims, to_dims;  // of equal sizes
  const void* from;
  void* to;
  uint32_t blocks;
};

template <class T>
BNGRAD_DEVICE void CopyBox(const CopyBoxArguments& a) {
  const int64_t step = static_cast<int64_t>(a.blocks) * kThreads;
  for (int64_t i = static_cast<int64_t>(BlockIndexX()) * kThreads + ThreadIndex(); i < a.count; i += step) {
    static_cast<T*>(a.to)[Offset(a.to_dims, i)] = static_cast<const T*>(a.from)[Offset(a.from_dims, i)];
  }
}

}  // namespace bngrad::cuda
