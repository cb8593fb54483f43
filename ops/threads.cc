#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "cpu_features.hpp"
#include "kernels/kernel.h"
#include "pool.hpp"

namespace bngrad {

OwnThreads::OwnThreads(int count) : threads_(count > 0 ? static_cast<size_t>(count) : CpuCores()) {}

void OwnThreads::Run(size_t count, void (*task)(void* argument, size_t i), void* argument) {
  const size_t threads = std::min<size_t>(threads_, count);
  if (threads <= 1) {
    for (size_t i = 0; i < count; ++i) task(argument, i);
    return;
  }
  // Each thread has a part of its own, the same one at every call, so that what it left in its cache is
  // there; who has done that helps the next one. Two atomics on one cache line would be one to the cores that
  // write to them.
  struct alignas(kCacheLine) Part {
    std::atomic<size_t> next;
  };
  std::vector<Part> parts(threads);
  for (size_t part = 0; part < threads; ++part) parts[part].next = part * count / threads;
  Pool::OfProcess().Run(threads, [&](size_t seat) {
    for (size_t k = 0; k < threads; ++k) {
      const size_t part = (seat + k) % threads, end = (part + 1) * count / threads;
      for (size_t i = parts[part].next++; i < end; i = parts[part].next++) task(argument, i);
    }
  });
}

}  // namespace bngrad
