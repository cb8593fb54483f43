// The roof of whatever is bound by memory: what a benchmark holds an op's bytes a second against.
#pragma once
#include <cstdint>

#include "core/threads.hpp"

namespace bngrad {

// c = a + b. Nothing in here is reused, so c goes past the caches.
void AddArrays(int64_t count, const float* a, const float* b, float* c, Parallel& parallel);

}  // namespace bngrad
