// BatchNormalizationGrad and BatchNormalizationReluGrad. With xhat = (X - mean) * inv_std and M elements per
// channel:
//   dbias = sum dY        dscale = sum dY*xhat
//   training: dX = scale*inv_std * (dY - (dbias + xhat*dscale)/M)      mean and inv_std are functions of X
//   frozen:   dX = scale*inv_std * dY                                  they are constants
// If a ReLU follows, Z = relu(Y): dY = dZ where Z > 0, else 0.
// If M = 0, dbias and dscale are zero.
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

struct GradArguments {
  Types types;
  bool training;
  const void* dy;  // dZ if z is not null
  const void* z;   // null: no ReLU
  const void *x, *scale, *mean, *inv_std;
  void *dx, *dscale, *dbias;  // null: not computed
};

void Grad(const Layout& layout, const GradArguments& arguments, const KernelTable& table, Parallel& parallel);

}  // namespace bngrad
