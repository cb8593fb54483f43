#include "core/bandwidth.hpp"

#include <algorithm>

#if defined(BNGRAD_X86_64)
#include <emmintrin.h>
#endif

#include "kernels/kernel.h"

namespace bngrad {
namespace {

// Large compared to the cost of scheduling a task, small enough to balance the threads.
constexpr int64_t kTaskElements = 1 << 18;

#if defined(BNGRAD_X86_64)

constexpr int64_t kFloatsPerVector = 4;
constexpr int64_t kFloatsPerLine = kCacheLine / sizeof(float);

void AddRange(int64_t count, const float* a, const float* b, float* c) {
  // Non-temporal stores must be aligned; whole cache lines are written without being read first.
  int64_t i = 0;
  while (i < count && reinterpret_cast<uintptr_t>(c + i) % kCacheLine != 0) {
    c[i] = a[i] + b[i];
    ++i;
  }
  for (; i + kFloatsPerLine <= count; i += kFloatsPerLine) {
    for (int64_t j = i; j < i + kFloatsPerLine; j += kFloatsPerVector) {
      _mm_stream_ps(c + j, _mm_add_ps(_mm_loadu_ps(a + j), _mm_loadu_ps(b + j)));
    }
  }
  for (; i < count; ++i) c[i] = a[i] + b[i];
  // Non-temporal stores are weakly ordered: threads that wait for this one must see them.
  _mm_sfence();
}

#else

void AddRange(int64_t count, const float* a, const float* b, float* c) {
  for (int64_t i = 0; i < count; ++i) c[i] = a[i] + b[i];
}

#endif

}  // namespace

void AddArrays(int64_t count, const float* a, const float* b, float* c, Parallel& parallel) {
  const int64_t tasks = (count + kTaskElements - 1) / kTaskElements;
  ForEach(parallel, tasks <= 1, tasks, [&](int64_t task) {
    const int64_t begin = task * kTaskElements;
    AddRange(std::min(kTaskElements, count - begin), a + begin, b + begin, c + begin);
  });
}

}  // namespace bngrad
