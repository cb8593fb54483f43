// A measure of memory bandwidth, the upper bound on the speed of ops that do little arithmetic per element.
#pragma once
#include <cstdint>

#include "core/threads.hpp"

namespace bngrad {

// c = a + b. Uses non-temporal stores where available: nothing is reused.
void AddArrays(int64_t count, const float* a, const float* b, float* c, Parallel& parallel);

}  // namespace bngrad
