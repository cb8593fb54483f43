// Exchanges the first two dimensions of an array: y[j, i, k] = x[i, j, k].
#pragma once
#include <cstdint>

#include "core/threads.hpp"

namespace bngrad {

// x: [first, second, size]; y: [second, first, size].
void ExchangeDimensions(const float* x, int64_t first, int64_t second, int64_t size, float* y,
                        Parallel& parallel);

}  // namespace bngrad
