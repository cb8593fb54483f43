// MaxPoolInputGrad: dX = 0, and for each window of X, in row-major order, dY is added to the first of its
// largest elements. As in ONNX Runtime's MaxPool with indices, a NaN is the largest if it is the first, and
// else is not; padding is never the largest.
#pragma once
#include <cstdint>

#include "core/element_type.hpp"
#include "core/threads.hpp"

namespace bngrad {

constexpr int kMaxPoolAxes = 3;

// The windows along one dimension: kernel element k of window o is at o*stride + k*dilation - begin.
struct PoolAxis {
  int64_t size;     // of X
  int64_t windows;  // of dY; each begins before the end of X
  int64_t kernel, stride, dilation, begin;
};

struct MaxPoolGradArguments {
  ElementType type;  // float or double
  int64_t planes;    // N * C
  PoolAxis axes[kMaxPoolAxes];
  const void *dY, *X;
  void* dX;
};

void MaxPoolGrad(const MaxPoolGradArguments& arguments, Parallel& parallel);

}  // namespace bngrad
