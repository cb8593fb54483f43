#include "core/threads.hpp"

#include <algorithm>
#include <atomic>

#include "core/cpu_cores.hpp"
#include "core/float_mode.hpp"
#include "core/pool.hpp"
#include "core/small_buffer.hpp"
#include "kernels/kernel.h"

namespace bngrad {

void RunInFloatModeOfCaller(Parallel& parallel, size_t count, void (*task)(void* argument, size_t i),
                            void* argument) {
  struct Tasks {
    void (*task)(void* argument, size_t i);
    void* argument;
    FloatMode mode;
  } tasks = {task, argument, FloatMode::OfThread()};
  // `task` is opaque to the compiler, so none of its arithmetic is moved out of the scope.
  const auto run = [](void* captured, size_t i) {
    const Tasks& self = *static_cast<const Tasks*>(captured);
    const ScopedFloatMode scope(self.mode);
    self.task(self.argument, i);
  };
  parallel.Run(count, run, &tasks);
}

PoolThreads::PoolThreads(int count) : threads_(count > 0 ? static_cast<size_t>(count) : CpuCores()) {}

void PoolThreads::Run(size_t count, void (*task)(void* argument, size_t i), void* argument) {
  const size_t threads = std::min<size_t>(threads_, count);
  if (threads <= 1) {
    for (size_t i = 0; i < count; ++i) task(argument, i);
    return;
  }
  // Each thread owns the same part at every call, so that its elements are in its cache, and then steals
  // tasks from the other parts. The last task of a part whose owner has started is not stolen: the owner gets
  // to it soon. Parts are aligned to cache lines to avoid false sharing.
  struct alignas(kCacheLine) Part {
    std::atomic<size_t> next, reserved;
    size_t end;
  };
  SmallBuffer<Part, 16> buffer;
  buffer.Allocate(threads);
  Part* const parts = buffer.data();
  for (size_t part = 0; part < threads; ++part) {
    parts[part].next = part * count / threads;
    parts[part].reserved = 0;
    parts[part].end = (part + 1) * count / threads;
  }
  const auto work = [parts, threads, task, argument](size_t thread) {
    Part& own = parts[thread];
    own.reserved = 1;
    for (size_t i = own.next++; i < own.end; i = own.next++) task(argument, i);
    for (size_t k = 1; k < threads; ++k) {
      Part& other = parts[(thread + k) % threads];
      while (other.next + other.reserved < other.end) {
        const size_t i = other.next++;
        if (i < other.end) task(argument, i);
      }
    }
  };
  const auto call = [](void* captured, size_t thread) { (*static_cast<decltype(work)*>(captured))(thread); };
  Pool::Instance().Run(threads, call, const_cast<void*>(static_cast<const void*>(&work)));
}

}  // namespace bngrad
