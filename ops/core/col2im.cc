#include "core/col2im.hpp"

#include <algorithm>
#include <vector>

#include "kernels/tuning.h"

namespace bngrad {
namespace {

// Windows of one row, with one kernel element each, that meet data: sums[to + i*stride] += products[from +
// i].
struct Run {
  int64_t from, to, count;
};

// The windows whose element k meets data.
struct Range {
  int64_t first, end;
};
Range Inside(const WindowAxis& axis, int64_t k) {
  const int64_t before = axis.begin - k * axis.dilation;  // of window 0, elements before the data
  const int64_t first = before <= 0 ? 0 : (before + axis.stride - 1) / axis.stride;
  const int64_t last = axis.size - 1 + before;
  const int64_t end = last < 0 ? 0 : std::min(axis.out, last / axis.stride + 1);
  return {std::min(first, end), end};
}

// The runs of one plane. A kernel element is `element` products after the one before it.
std::vector<Run> RunsOf(const WindowAxis& rows, const WindowAxis& columns, int64_t element) {
  std::vector<Run> runs;
  for (int64_t i = 0; i < rows.kernel; ++i) {
    const Range of_rows = Inside(rows, i);
    for (int64_t j = 0; j < columns.kernel; ++j) {
      const Range range = Inside(columns, j);
      if (range.first == range.end) continue;
      const int64_t first = range.first * columns.stride + j * columns.dilation - columns.begin;
      for (int64_t o = of_rows.first; o < of_rows.end; ++o) {
        const int64_t row = o * rows.stride + i * rows.dilation - rows.begin;
        runs.push_back({(i * columns.kernel + j) * element + o * columns.out + range.first,
                        row * columns.size + first, range.end - range.first});
      }
    }
  }
  return runs;
}

// kStride: that of the windows; 0: `stride`.
template <int kStride>
void AddRuns(const std::vector<Run>& runs, const float* products, int64_t stride, float* sums) {
  const int64_t step = kStride > 0 ? kStride : stride;
  for (const Run& run : runs) {
    const float* const from = products + run.from;
    float* const to = sums + run.to;
    for (int64_t i = 0; i < run.count; ++i) to[i * step] += from[i];
  }
}

}  // namespace

void ColumnsToImages(const float* columns, int64_t images, int64_t channels, const WindowAxis& row_axis,
                     const WindowAxis& column_axis, float* data, Parallel& parallel) {
  const int64_t windows = row_axis.out * column_axis.out, plane = row_axis.size * column_axis.size;
  const int64_t elements = row_axis.kernel * column_axis.kernel, stride = column_axis.stride;
  const std::vector<Run> runs = RunsOf(row_axis, column_axis, images * windows);
  const auto add = stride == 1 ? AddRuns<1> : stride == 2 ? AddRuns<2> : AddRuns<0>;
  const int64_t work = images * (elements * windows + plane);
  ForEach(parallel, channels * work < kSingleThreadElements, channels, [&](int64_t c) {
    const float* const products = columns + c * elements * images * windows;
    for (int64_t n = 0; n < images; ++n) {
      float* const sums = data + (n * channels + c) * plane;
      std::fill_n(sums, plane, 0.0F);
      add(runs, products + n * windows, stride, sums);
    }
  });
}

}  // namespace bngrad
