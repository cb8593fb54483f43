// Division by a number that the host knows, of which a GPU has no instruction: a product and a shift.
#pragma once
#include "cuda/kernels/device.h"

namespace bngrad::cuda {

// n / value is (n + (n*factor >> 32)) >> shift for n below 2^31: the method of Granlund and Montgomery, 1994.
struct Divisor {
  uint32_t value, factor, shift;
};

// value: 1 to 2^31 - 1.
inline Divisor MakeDivisor(int64_t value) {
  uint32_t shift = 0;
  while (int64_t{1} << shift < value) ++shift;
  const int64_t factor = (((int64_t{1} << shift) - value) << 32) / value + 1;
  return {static_cast<uint32_t>(value), static_cast<uint32_t>(factor), shift};
}

// n: below 2^31.
BNGRAD_DEVICE uint32_t Quotient(uint32_t n, const Divisor& d) {
  return (HighProduct(n, d.factor) + n) >> d.shift;
}

}  // namespace bngrad::cuda
