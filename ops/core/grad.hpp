// BatchNormalizationGrad and BatchNormalizationReluGrad. With xhat = (X - mean) * inv_std and M elements per
// channel:
//   dbias = sum dY        dscale = sum dY*xhat
//   training: dX = scale*inv_std * (dY - (dbias + xhat*dscale)/M)      mean and inv_std are functions of X
//   frozen:   dX = scale*inv_std * dY                                  they are constants
// If a ReLU follows, Z = relu(Y): dY = dZ where Z > 0, else 0.
// If M = 0, dbias and dscale are zero.
//
// In two parts, for a batch that is divided among ranks, with S the sums of all ranks and M the elements of a
// channel in the whole batch:
//   GradSums:  S0 = sum dY, S1 = sum dY*(X - mean)
//   GradApply: dX = scale*inv_std * (dY - (S0 + xhat*inv_std*S1)/M)
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
  double* sums = nullptr;     // sum dY and sum dY*(X - mean), [2, channels]; null: not computed
};

void Grad(const Layout& layout, const GradArguments& arguments, const KernelTable& table, Parallel& parallel);

struct GradSumsArguments {
  Types types;  // `stat` is not used
  const void *dy, *z, *x;
  const double *batch_mean, *batch_inv_std;
  double* sums;          // [2, channels]
  void *dscale, *dbias;  // null: not computed
};

// The arguments of Grad that compute only these.
GradArguments ToGrad(const GradSumsArguments& arguments);

void GradSums(const Layout& layout, const GradSumsArguments& arguments, const KernelTable& table,
              Parallel& parallel);

struct GradApplyArguments {
  Types types;  // `stat` is not used
  const void *dy, *z, *x, *scale;
  const double *batch_mean, *batch_inv_std;
  int64_t ranks;
  const double* gathered_sums;  // [ranks, 2, channels]
  const double* batch_count;
  void* dx;
};

void GradApply(const Layout& layout, const GradApplyArguments& arguments, const KernelTable& table,
               Parallel& parallel);

}  // namespace bngrad
