// The sums over windows that end a transposed convolution, for all images at once.
#pragma once
#include <cstdint>

#include "core/threads.hpp"
#include "core/window_axis.hpp"

namespace bngrad {

// data[n, c, p] = sum of columns[c, k, n, o] over the kernel elements k and windows o that meet p, in the
// order of k and then o. columns: [channels, rows.kernel, columns.kernel, images, rows.out, columns.out],
// with 32-bit sizes of windows; data: [images, channels, rows.size, columns.size].
void ColumnsToImages(const float* columns, int64_t images, int64_t channels, const WindowAxis& row_axis,
                     const WindowAxis& column_axis, float* data, Parallel& parallel);

}  // namespace bngrad
