#include "core/max_pool_grad.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "kernels/tuning.h"

namespace bngrad {
namespace {

// A distance within a window: of the size of an element, so that compilers compare and select whole vectors.
template <class T>
using Distance = std::conditional_t<sizeof(T) == sizeof(int32_t), int32_t, int64_t>;

// What a row of windows has found so far: the largest elements, and where they are.
template <class T>
struct Best {
  T value[kMaxPoolColumns];
  Distance<T> at[kMaxPoolColumns];
};

// Compares a row of each of `count` windows: element k of window i is x[i*stride + k*dilation].
template <class T>
struct AnyRow {
  int64_t kernel, stride, dilation;
  void operator()(const T* x, int64_t count, Distance<T> first, Best<T>& best) const {
    for (int64_t k = 0; k < kernel; ++k) {
      const T* const row = x + k * dilation;
      const Distance<T> at = first + static_cast<Distance<T>>(k * dilation);
      for (int64_t i = 0; i < count; ++i) {
        const T value = row[i * stride], largest = best.value[i];
        best.value[i] = value > largest ? value : largest;
        best.at[i] = value > largest ? at : best.at[i];
      }
    }
  }
};

// The same with constants: the largest element stays in a register, and strides are shuffles.
template <class T, int kKernel, int kStride>
struct FixedRow {
  void operator()(const T* x, int64_t count, Distance<T> first, Best<T>& best) const {
    for (int64_t i = 0; i < count; ++i) {
      T largest = best.value[i];
      Distance<T> at = best.at[i];
      for (int k = 0; k < kKernel; ++k) {
        const T value = x[i * kStride + k];
        at = value > largest ? first + k : at;
        largest = value > largest ? value : largest;
      }
      best.value[i] = largest;
      best.at[i] = at;
    }
  }
};

// The kernel elements of a window that are in X.
struct Range {
  int64_t first, end;
};
Range Inside(const PoolAxis& axis, int64_t window) {
  const int64_t begin = window * axis.stride - axis.begin;
  const int64_t first = begin >= 0 ? 0 : (axis.dilation - 1 - begin) / axis.dilation;
  const int64_t end = begin >= axis.size ? 0 : (axis.size - 1 - begin) / axis.dilation + 1;
  return {first, std::min(axis.kernel, end)};
}

// One plane, with a function that compares rows of whole windows.
template <class T, class Row>
class Plane {
 public:
  Plane(const PoolAxis* axes, const Row& row)
      : depth_(axes[0]), height_(axes[1]), width_(axes[2]), row_(row) {
    const int64_t length = (width_.kernel - 1) * width_.dilation;
    const int64_t room = width_.size - 1 - length + width_.begin;
    whole_begin_ = std::min(width_.windows, (width_.begin + width_.stride - 1) / width_.stride);
    whole_end_ = std::max(whole_begin_, room < 0 ? 0 : std::min(width_.windows, room / width_.stride + 1));
    // In double, which does not overflow.
    const double depths =
        static_cast<double>(depth_.kernel - 1) * static_cast<double>(depth_.dilation * height_.size);
    const double heights = static_cast<double>(height_.kernel - 1) * static_cast<double>(height_.dilation);
    const double reach = (depths + heights) * static_cast<double>(width_.size) + static_cast<double>(length);
    if (reach >= static_cast<double>(std::numeric_limits<Distance<T>>::max())) whole_end_ = whole_begin_;
  }

  void Run(const T* dy, const T* x, T* dx) const {
    std::fill_n(dx, depth_.size * height_.size * width_.size, T(0));
    for (int64_t d = 0; d < depth_.windows; ++d) {
      const Range depths = Inside(depth_, d);
      for (int64_t h = 0; h < height_.windows; ++h, dy += width_.windows) {
        const Range heights = Inside(height_, h);
        if (depths.first >= depths.end || heights.first >= heights.end) continue;
        const int64_t top = (d * depth_.stride - depth_.begin) * height_.size;
        const int64_t corner = (top + h * height_.stride - height_.begin) * width_.size - width_.begin;
        Parts(depths, heights, corner, 0, whole_begin_, dy, x, dx);
        for (int64_t w = whole_begin_; w < whole_end_; w += kMaxPoolColumns) {
          Whole(depths, heights, corner, w, std::min(kMaxPoolColumns, whole_end_ - w), dy, x, dx);
        }
        Parts(depths, heights, corner, whole_end_, width_.windows, dy, x, dx);
      }
    }
  }

 private:
  // From the corner of a window to the first element of one of its rows.
  int64_t RowAt(int64_t depth, int64_t height) const {
    return (depth * depth_.dilation * height_.size + height * height_.dilation) * width_.size;
  }

  // Windows that have all their columns in X.
  void Whole(Range depths, Range heights, int64_t corner, int64_t w, int64_t count, const T* dy, const T* x,
             T* dx) const {
    const int64_t first = corner + w * width_.stride + RowAt(depths.first, heights.first);
    const int64_t skipped = RowAt(depths.first, heights.first);
    Best<T> best;
    for (int64_t i = 0; i < count; ++i) {
      best.value[i] = x[first + i * width_.stride];
      best.at[i] = 0;
    }
    for (int64_t d = depths.first; d < depths.end; ++d) {
      for (int64_t h = heights.first; h < heights.end; ++h) {
        const int64_t at = RowAt(d, h) - skipped;
        row_(x + first + at, count, static_cast<Distance<T>>(at), best);
      }
    }
    for (int64_t i = 0; i < count; ++i) dx[first + i * width_.stride + best.at[i]] += dy[w + i];
  }

  // Any windows, one at a time.
  void Parts(Range depths, Range heights, int64_t corner, int64_t begin, int64_t end, const T* dy, const T* x,
             T* dx) const {
    for (int64_t w = begin; w < end; ++w) {
      const Range widths = Inside(width_, w);
      if (widths.first >= widths.end) continue;
      const int64_t left = corner + w * width_.stride;
      int64_t best = left + RowAt(depths.first, heights.first) + widths.first * width_.dilation;
      T largest = x[best];
      for (int64_t d = depths.first; d < depths.end; ++d) {
        for (int64_t h = heights.first; h < heights.end; ++h) {
          const int64_t row = left + RowAt(d, h);
          for (int64_t k = widths.first; k < widths.end; ++k) {
            const int64_t at = row + k * width_.dilation;
            best = x[at] > largest ? at : best;  // both without a branch, which would be mispredicted
            largest = x[at] > largest ? x[at] : largest;
          }
        }
      }
      dx[best] += dy[w];
    }
  }

  const PoolAxis depth_, height_, width_;
  int64_t whole_begin_, whole_end_;  // the windows of a row that have all their columns in X
  const Row row_;
};

template <class T, class Row>
void RunPlanes(const MaxPoolGradArguments& a, const Row& row, Parallel& parallel) {
  const Plane<T, Row> plane(a.axes, row);
  int64_t size = 1, windows = 1;
  for (const PoolAxis& axis : a.axes) {
    size *= axis.size;
    windows *= axis.windows;
  }
  const int64_t planes = std::max<int64_t>(1, kMaxPoolTaskElements / std::max<int64_t>(1, size));
  const int64_t tasks = (a.planes + planes - 1) / planes;
  ForEach(parallel, a.planes * size < kSingleThreadElements, tasks, [&](int64_t task) {
    const int64_t end = std::min(a.planes, (task + 1) * planes);
    for (int64_t p = task * planes; p < end; ++p) {
      plane.Run(static_cast<const T*>(a.dY) + p * windows, static_cast<const T*>(a.X) + p * size,
                static_cast<T*>(a.dX) + p * size);
    }
  });
}

template <class T>
void Run(const MaxPoolGradArguments& a, Parallel& parallel) {
  const PoolAxis& width = a.axes[kMaxPoolAxes - 1];
  const auto is = [&](int64_t kernel, int64_t stride) {
    return width.kernel == kernel && width.stride == stride && width.dilation == 1;
  };
  if (is(3, 2)) return RunPlanes<T>(a, FixedRow<T, 3, 2>(), parallel);
  if (is(3, 1)) return RunPlanes<T>(a, FixedRow<T, 3, 1>(), parallel);
  if (is(2, 2)) return RunPlanes<T>(a, FixedRow<T, 2, 2>(), parallel);
  RunPlanes<T>(a, AnyRow<T>{width.kernel, width.stride, width.dilation}, parallel);
}

}  // namespace

void MaxPoolGrad(const MaxPoolGradArguments& a, Parallel& parallel) {
  if (a.type == ElementType::kDouble) {
    Run<double>(a, parallel);
  } else {
    Run<float>(a, parallel);
  }
}

}  // namespace bngrad
