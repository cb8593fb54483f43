// Who runs the tasks: ONNX Runtime's pool (ort_op.cc) or threads of our own.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace bngrad {

class Parallel {
 public:
  virtual ~Parallel() = default;
  // How many there are, at most.
  virtual size_t threads() const = 0;
  // Calls task(argument, i) for each i < count, in any order, at the same time or not. The task must not
  // throw.
  virtual void Run(size_t count, void (*task)(void* argument, size_t i), void* argument) = 0;
};

// Threads of the process's pool: for the C ABI, which has none to borrow.
class OwnThreads final : public Parallel {
 public:
  // count <= 0: as many as the machine runs at once.
  explicit OwnThreads(int count);
  size_t threads() const override { return threads_; }
  void Run(size_t count, void (*task)(void* argument, size_t i), void* argument) override;

 private:
  size_t threads_;
};

// Runs tasks in the floating-point mode of this thread, whichever thread has them.
void RunInFloatModeOfCaller(Parallel& parallel, size_t count, void (*task)(void* argument, size_t i),
                            void* argument);

template <class Task>
void ForEach(Parallel& parallel, bool one_thread, int64_t count, const Task& task) {
  if (one_thread || count <= 1) {
    for (int64_t i = 0; i < count; ++i) task(i);
    return;
  }
  const auto call = [](void* argument, size_t i) {
    (*static_cast<const Task*>(argument))(static_cast<int64_t>(i));
  };
  RunInFloatModeOfCaller(parallel, static_cast<size_t>(count), call, const_cast<Task*>(&task));
}

// The same for what has been gone through before: each thread's part from its end, which is still in the
// thread's cache, if parts are dealt out as OwnThreads and ONNX Runtime do.
template <class Task>
void ForEachBack(Parallel& parallel, int64_t count, const Task& task) {
  const int64_t parts = std::min(static_cast<int64_t>(parallel.threads()), count);
  ForEach(parallel, false, count, [&](int64_t i) {
    const int64_t part = ((i + 1) * parts - 1) / count;
    task(part * count / parts + (part + 1) * count / parts - 1 - i);
  });
}

}  // namespace bngrad
