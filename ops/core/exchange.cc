#include "core/exchange.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/tuning.h"

namespace bngrad {
namespace {

// A run of `kSize` elements, or of `size` if kSize is 0.
template <int kSize>
void ExchangeRows(const float* x, int64_t first, int64_t second, int64_t size, int64_t begin, int64_t end,
                  float* y) {
  const int64_t run = kSize > 0 ? kSize : size;
  const auto bytes = static_cast<size_t>(run) * sizeof(float);
  for (int64_t i = 0; i < first; ++i) {
    for (int64_t j = begin; j < end; ++j) {
      std::memcpy(y + (j * first + i) * run, x + (i * second + j) * run, bytes);
    }
  }
}

}  // namespace

void ExchangeDimensions(const float* x, int64_t first, int64_t second, int64_t size, float* y,
                        Parallel& parallel) {
  const int64_t rows = std::max<int64_t>(1, kExchangeElements / size);
  const int64_t tasks = (second + rows - 1) / rows;
  const auto exchange = size == 1 ? ExchangeRows<1> : size == 4 ? ExchangeRows<4> : ExchangeRows<0>;
  ForEach(parallel, first * second * size < kSingleThreadElements, tasks, [&](int64_t task) {
    const int64_t begin = task * rows;
    exchange(x, first, second, size, begin, std::min(second, begin + rows), y);
  });
}

}  // namespace bngrad
