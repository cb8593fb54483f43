// BatchNormalizationGrad and BatchNormalizationReluGrad. With xhat = (X - mean) * inv_std and M elements a
// channel:
//   dbias = sum dY        dscale = sum dY*xhat
//   training: dX = scale*inv_std * (dY - (dbias + xhat*dscale)/M)      mean and inv_std are functions of X
//   frozen:   dX = scale*inv_std * dY                                  they are constants
// and, where a ReLU follows, Z = relu(Y), dY = dZ where Z > 0, else 0.
// M = 0 gives sums of zero.
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

struct GradArguments {
  Types types;
  bool training;
  const void* dy;  // dZ where there is a Z
  const void* z;   // null: there is no ReLU
  const void *x, *scale, *mean, *inv_std;
  void *dx, *dscale, *dbias;  // null: not wanted
};

void Grad(const Layout& layout, const GradArguments& arguments, const KernelTable& table, Parallel& parallel);

}  // namespace bngrad
