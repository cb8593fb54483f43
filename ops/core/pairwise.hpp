// Pairwise summation by a fixed tree: of the segments of a tile, and of the ranks of a distributed run.
#pragma once
#include <cstdint>

namespace bngrad {

// Adds `count` rows of `size` values to the first row: first neighbors, then rows at a distance of 2, 4, ...
// The order depends on `count` alone. The other rows are overwritten.
inline void AddPairwise(int64_t count, int64_t size, double* rows) {
  for (int64_t stride = 1; stride < count; stride *= 2) {
    for (int64_t row = 0; row + stride < count; row += 2 * stride) {
      double* const to = rows + row * size;
      const double* const from = rows + (row + stride) * size;
      for (int64_t i = 0; i < size; ++i) to[i] += from[i];
    }
  }
}

}  // namespace bngrad
