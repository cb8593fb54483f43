// What cuDNN needs to compute the gradients of a Conv for some shapes.
#pragma once
#include <memory>
#include <optional>

#include "cuda/convolution.hpp"

namespace bngrad::cuda {

// All shapes have channels first: [N, C, *spatial], and [M, C / group, *kernel].
struct ConvGradArguments {
  ElementType type;
  bool channels_last;  // in memory
  Shape x_shape, w_shape, dy_shape;
  const void *dy, *x, *w;
  void *dx, *dw, *db;  // null: not computed
};

struct ConvPlan {
  PaddedX padded;
  Descriptor x, w, dy;
  std::optional<Algorithm> filter, data;  // of the gradients that are computed
  bool is_supported;                      // always, with channels first
};

// Chooses the algorithms of the gradients that are computed. Throws Failure.
std::unique_ptr<ConvPlan> MakePlan(const ConvAttributes& attributes, const ConvGradArguments& arguments,
                                   const CudnnRun& run);

}  // namespace bngrad::cuda
