// Runs tasks in parallel: on ONNX Runtime's thread pool (ort/op.cc) or on the library's own.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace bngrad {

class Parallel {
 public:
  virtual ~Parallel() = default;
  // The maximum number of threads.
  virtual size_t threads() const = 0;
  // Calls task(argument, i) for each i < count, in any order and possibly concurrently. Tasks must not throw.
  virtual void Run(size_t count, void (*task)(void* argument, size_t i), void* argument) = 0;
};

// Threads of the library's own pool, for the C ABI.
class PoolThreads final : public Parallel {
 public:
  // count <= 0: CpuCores().
  explicit PoolThreads(int count);
  size_t threads() const override { return threads_; }
  void Run(size_t count, void (*task)(void* argument, size_t i), void* argument) override;

 private:
  size_t threads_;
};

// Runs tasks in the floating-point mode of the calling thread.
void RunInFloatModeOfCaller(Parallel& parallel, size_t count, void (*task)(void* argument, size_t i),
                            void* argument);

template <class Task>
void ForEach(Parallel& parallel, bool single_thread, int64_t count, const Task& task) {
  if (single_thread || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  const auto call = [](void* argument, size_t i) {
    (*static_cast<const Task*>(argument))(static_cast<int64_t>(i));
  };
  RunInFloatModeOfCaller(parallel, static_cast<size_t>(count), call, const_cast<Task*>(&task));
}

// The same for a second pass over the same elements: each thread's part is processed from its end, which is
// still in that thread's cache, given the static division of PoolThreads and ONNX Runtime.
template <class Task>
void ForEachBackward(Parallel& parallel, int64_t count, const Task& task) {
  const int64_t parts = std::min(static_cast<int64_t>(parallel.threads()), count);
  ForEach(parallel, false, count, [&](int64_t i) {
    const int64_t part = ((i + 1) * parts - 1) / count;
    task(part * count / parts + (part + 1) * count / parts - 1 - i);
  });
}

}  // namespace bngrad
