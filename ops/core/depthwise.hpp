// Depthwise convolutions of one or two spatial dimensions, with M a multiple of C, of data in float or
// double:
//   Y[n, m, o] = B[m] + sum over k of W[m, k] X[n, c, o stride + k dilation - begin]      c = m / (M / C)
//   dX[n, c, o stride + k dilation - begin] += W[m, k] dY[n, m, o]
//   dW[m, k] = sum over n, o of dY[n, m, o] X[n, c, o stride + k dilation - begin]
// One rounding for each product and sum. The terms of Y are added up in the order of k, those of dX in that
// of m and k; those of dW in double, a row at a time.
#pragma once
#include <cstdint>

#include "core/element_type.hpp"
#include "core/threads.hpp"
#include "core/window_axis.hpp"
#include "kernels/kernel.h"

namespace bngrad {

struct DepthwiseShape {
  ElementType type;
  int64_t batch, channels, multiplier;  // M / C
  WindowAxis rows, columns;             // of one spatial dimension: rows are 1

  int64_t elements() const { return rows.kernel * columns.kernel; }
  int64_t in_plane() const { return rows.size * columns.size; }
  int64_t out_plane() const { return rows.out * columns.out; }
};

// bias may be null.
void DepthwiseConv(const DepthwiseShape& shape, const void* x, const void* w, const void* bias, void* y,
                   const KernelTable& table, Parallel& parallel);

// dx or dw may be null.
void DepthwiseConvGrad(const DepthwiseShape& shape, const void* dy, const void* x, const void* w, void* dx,
                       void* dw, const KernelTable& table, Parallel& parallel);

}  // namespace bngrad
