// Threads that outlive a call: starting one costs as much as a small op.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

#include "kernels/kernel.h"

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
  struct alignas(kCacheLine) Job {
    const std::function<void(size_t)>& work;
    std::atomic<size_t> seats;   // for threads that may still join; taken with the mutex held
    std::atomic<size_t> inside;  // that have joined and not returned
  };

  explicit Pool(int process) : process_(process) {}

  void Help();
  void Offer(Job& job);
  void Withdraw(Job& job);
  void AwaitOthers(Job& job);
  void StartThreads(size_t seats);
  std::unique_lock<std::mutex> Lock();
  template <class Condition>
  bool Spin(const Condition& condition) const;

  const int process_;  // its identifier
  // Of what is not atomic. Jobs are offered, joined and withdrawn with it held.
  std::mutex mutex_;
  std::condition_variable called_, left_;
  std::deque<Job*> jobs_;  // that have seats
  size_t sleeping_ = 0;    // threads that wait to be called
  std::atomic<size_t> threads_{0};
  // Of all jobs. On a line of its own, for threads that have nothing to do look at it all the time.
  alignas(kCacheLine) std::atomic<size_t> seats_{0};
  alignas(kCacheLine) std::atomic<size_t> idle_{0};  // threads that do no work
  std::atomic<size_t> awaiting_{0};                  // callers that sleep until others have left their job
};

}  // namespace bngrad
