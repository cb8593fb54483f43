// The division of X among the blocks of a grid: the numbers that kernels take (cuda/kernels/view.h), from the
// collapsed dimensions of core/layout.hpp.
#pragma once
#include "core/element_type.hpp"
#include "core/layout.hpp"
#include "cuda/kernels/view.h"

namespace bngrad::cuda {

struct Plan {
  View view;
  bool columns;
  bool wide;        // vectors of several elements
  uint32_t groups;  // blocks, for each split
};

// `aligned`: every array of the shape of X begins at a multiple of the size of a vector. `processors`: the
// multiprocessors of the device, each of which gets several blocks if X is large enough.
//
// Throws InvalidArgument for more groups of channels than a grid has blocks.
Plan MakePlan(const Layout& layout, ElementType type, bool aligned, int processors);

}  // namespace bngrad::cuda
