// What cuDNN needs to compute the gradients of a Conv for some shapes.
#pragma once
#include <memory>

#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "cuda/descriptors.hpp"

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
  // One of the two gradients: its descriptor has the arithmetic of the algorithm.
  struct Gradient {
    Descriptor convolution;
    int algorithm = 1;  // deterministic, and for all shapes of channels first
    size_t workspace = 0;
  };

  Shape padded;    // the shape of X with what the descriptors do not have of the padding
  int64_t offset;  // of X in it, in elements
  Descriptor x, w, dy;
  Gradient filter, data;
  bool is_supported;  // always, with channels first
};

// Chooses the algorithms of the gradients that are computed. Throws Failure.
std::unique_ptr<ConvPlan> MakePlan(const ConvAttributes& attributes, const ConvGradArguments& arguments,
                                   const CudnnRun& run);

}  // namespace bngrad::cuda
