// MaxPoolInputGrad, as core/max_pool_grad.hpp: for each window the place of the first of its largest
// elements, then for each element of dX the sum of dY over the windows that found it, in row-major order. So
// nothing is compared twice, nothing is added atomically, and the bits are those of the CPU.
#pragma once
#include "cuda/kernels/divisor.h"

namespace bngrad::cuda {

// The windows along one dimension, as PoolAxis.
struct PoolDim {
  Divisor size, windows, stride;
  int32_t kernel, dilation, begin;
  // The extent of a window less 1 is reach_windows*stride + reach_rest.
  int32_t reach_windows, reach_rest;
};

// Of planes that have less than 2^31 elements and windows together. Windows outside of X have no place.
struct MaxPoolArguments {
  uint32_t elements, windows;  // of all planes
  PoolDim depth, height, width;
  const void *x, *dy;
  uint32_t* places;  // of each window: the index in its plane
  void* dx;
  uint32_t blocks;
};

constexpr uint32_t kNoPlace = 0xffffffff;

// An index as that of a plane and those of the dimensions.
struct PoolIndex {
  uint32_t plane;
  int32_t depth, height, width;
};

BNGRAD_DEVICE PoolIndex IndexOf(uint32_t i, const Divisor& depth, const Divisor& height,
                                const Divisor& width) {
  const uint32_t row = Quotient(i, width), slice = Quotient(row, height), plane = Quotient(slice, depth);
  return {plane, static_cast<int32_t>(slice - plane * depth.value),
          static_cast<int32_t>(row - slice * height.value), static_cast<int32_t>(i - row * width.value)};
}

// The first element of a window, which may be before X.
BNGRAD_DEVICE int32_t FirstOf(int32_t window, const PoolDim& dim) {
  return window * static_cast<int32_t>(dim.stride.value) - dim.begin;
}

BNGRAD_DEVICE bool IsInside(int32_t element, const PoolDim& dim) {
  return static_cast<uint32_t>(element) < dim.size.value;
}

template <class T>
BNGRAD_DEVICE void FindLargest(const MaxPoolArguments& a) {
  const uint32_t height = a.height.size.value, width = a.width.size.value;
  const uint32_t plane_size = a.depth.size.value * height * width, step = a.blocks * kThreads;
  for (uint32_t i = BlockIndexX() * kThreads + ThreadIndex(); i < a.windows; i += step) {
    const PoolIndex window = IndexOf(i, a.depth.windows, a.height.windows, a.width.windows);
    const T* const plane = static_cast<const T*>(a.x) + window.plane * plane_size;
    const int32_t z0 = FirstOf(window.depth, a.depth), y0 = FirstOf(window.height, a.height),
                  x0 = FirstOf(window.width, a.width);
    uint32_t place = kNoPlace;
    T largest = 0;
    for (int32_t d = 0; d < a.depth.kernel; ++d) {
      const int32_t z = z0 + d * a.depth.dilation;
      if (!IsInside(z, a.depth)) continue;
      for (int32_t h = 0; h < a.height.kernel; ++h) {
        const int32_t y = y0 + h * a.height.dilation;
        if (!IsInside(y, a.height)) continue;
        const uint32_t row = (static_cast<uint32_t>(z) * height + static_cast<uint32_t>(y)) * width;
        for (int32_t w = 0; w < a.width.kernel; ++w) {
          const int32_t x = x0 + w * a.width.dilation;
          if (!IsInside(x, a.width)) continue;
          const uint32_t at = row + static_cast<uint32_t>(x);
          const T value = plane[at];
          if (place != kNoPlace && !(value > largest)) continue;
          place = at;
          largest = value;
        }
      }
    }
    a.places[i] = place;
  }
}

// The windows along a dimension from before an element's to after it.
struct WindowSpan {
  int32_t first, last;
};

BNGRAD_DEVICE WindowSpan WindowsOver(int32_t element, const PoolDim& dim) {
  const uint32_t from_begin = static_cast<uint32_t>(element + dim.begin);
  const uint32_t window = Quotient(from_begin, dim.stride);
  const int32_t rest = static_cast<int32_t>(from_begin - window * dim.stride.value);
  const int32_t last = static_cast<int32_t>(window), end = static_cast<int32_t>(dim.windows.value) - 1;
  const int32_t first = last - dim.reach_windows + (rest > dim.reach_rest ? 1 : 0);
  return {first < 0 ? 0 : first, last < end ? last : end};
}

template <class T>
BNGRAD_DEVICE void AddFound(const MaxPoolArguments& a) {
  const uint32_t plane_size = a.depth.size.value * a.height.size.value * a.width.size.value;
  const uint32_t step = a.blocks * kThreads;
  for (uint32_t i = BlockIndexX() * kThreads + ThreadIndex(); i < a.elements; i += step) {
    const PoolIndex element = IndexOf(i, a.depth.size, a.height.size, a.width.size);
    const uint32_t place = i - element.plane * plane_size;
    const WindowSpan depths = WindowsOver(element.depth, a.depth),
                     heights = WindowsOver(element.height, a.height),
                     widths = WindowsOver(element.width, a.width);
    T sum = 0;
    for (int32_t d = depths.first; d <= depths.last; ++d) {
      const uint32_t slice = element.plane * a.depth.windows.value + static_cast<uint32_t>(d);
      for (int32_t h = heights.first; h <= heights.last; ++h) {
        const uint32_t row =
            (slice * a.height.windows.value + static_cast<uint32_t>(h)) * a.width.windows.value;
        for (int32_t w = widths.first; w <= widths.last; ++w) {
          const uint32_t window = row + static_cast<uint32_t>(w);
          const T dy = static_cast<const T*>(a.dy)[window];  // read in any case: neither load waits
          sum += a.places[window] == place ? dy : T(0);
        }
      }
    }
    static_cast<T*>(a.dx)[i] = sum;
  }
}

}  // namespace bngrad::cuda
