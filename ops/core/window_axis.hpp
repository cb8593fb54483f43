// Windows that slide along a dimension.
#pragma once
#include <cstdint>

namespace bngrad {

// Element k of window o is data element o*stride + k*dilation - begin, if there is one: there are `size`.
struct WindowAxis {
  int64_t size, out, kernel, stride, dilation, begin;
};

}  // namespace bngrad
