// BatchNormalizationGradGrad, the gradient of BatchNormalizationGrad for a loss of its outputs. With
// xhat = (X - mean) * inv_std, mean(t) over the M elements of a channel, and
// P(t) = t - mean(t) - xhat*mean(t*xhat) in training mode, P(t) = t in frozen mode:
//   d_dY    = scale*inv_std*P(ddX) + ddscale*xhat + ddbias
//   d_X     = ddscale*inv_std*P(dY)
//             - scale*inv_std^2 * (xhat*mean(ddX*P(dY)) + mean(dY*xhat)*P(ddX) + mean(ddX*xhat)*P(dY))
//             (frozen: the first line only)
//   d_scale = inv_std * sum(ddX*P(dY))
// If M = 0, d_scale is zero.
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "core/threads.hpp"
#include "kernels/kernel.h"

namespace bngrad {

struct GradGradArguments {
  Types types;
  bool training;
  const void *ddx, *ddscale, *ddbias, *dy, *x, *scale, *mean, *inv_std;
  void *d_dy, *d_x, *d_scale;  // null: not computed
};

void GradGrad(const Layout& layout, const GradGradArguments& arguments, const KernelTable& table,
              Parallel& parallel);

}  // namespace bngrad
