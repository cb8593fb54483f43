// Threads that outlive a call: starting one costs as much as a small op.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace bngrad {

class Pool {
 public:
  // Never destroyed, for its threads outlive main(). A forked child, which has none of them, gets another.
  // Throws std::bad_alloc.
  static Pool& OfProcess();

  // Calls work(0) in this thread and, as far as there are threads, work(1) to work(threads - 1) in others at
  // the same time; returns when all have returned. Several threads may call it at once. `work` must not
  // throw.
  void Run(size_t threads, const std::function<void(size_t)>& work);

 private:
  struct Job {
    const std::function<void(size_t)>& work;
    size_t seats;                // for threads that may still join
    std::atomic<size_t> inside;  // that have joined and not returned
    std::condition_variable left;
  };

  explicit Pool(int process) : process_(process) {}

  void Help();
  void StartThreads();
  std::unique_lock<std::mutex> Lock();
  template <class Condition>
  void Spin(const Condition& condition) const;

  const int process_;  // its identifier
  // Of all below and of the jobs. Atomic is what is waited for without it.
  std::mutex mutex_;
  std::condition_variable called_;
  std::deque<Job*> jobs_;  // that have seats
  std::atomic<size_t> seats_{0};
  size_t idle_ = 0;  // threads
  std::atomic<size_t> threads_{0};
};

}  // namespace bngrad
