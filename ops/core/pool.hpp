// Threads that outlive a call: starting one costs as much as a small op.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "kernels/kernel.h"

namespace bngrad {

class Pool {
 public:
  using Work = void (*)(void* argument, size_t seat);

  // Never destroyed, for its threads outlive main(). A forked child, which has none of them, gets another.
  // Throws std::bad_alloc.
  static Pool& OfProcess();

  // Calls work(argument, 0) in this thread and, as far as there are threads, with 1 to threads - 1 in others
  // at the same time, each seat in the same one as the last time if it can be; returns when all have
  // returned. Several threads may call it at once: they share as many threads as the one of them all that
  // has ever asked for most, less itself. `work` must not throw. Throws std::bad_alloc.
  void Run(size_t threads, Work work, void* argument);

 private:
  struct Desk;

  // All that a thread is told, on one cache line: fetching another takes as long as adding up 500 numbers.
  struct alignas(kCacheLine) Seat {
    Work work;
    void* argument;
    size_t number;
    std::atomic<size_t>* inside;  // of the job: seats given that have not been left or taken back
    Desk* desk;                   // that it was put on
    std::atomic<bool> taken;      // a hint; who has seen it false may find that it is
  };

  // One for each thread, which looks at it all the time, or sleeps. What lies there is a seat that was given,
  // or one of three that stand for what the thread does: a seat is put in the place of kLooking or kAsleep,
  // and the thread takes it by leaving kBusy. Until then it can be taken back.
  struct alignas(kCacheLine) Desk {
    std::atomic<Seat*> seat;
    Desk* next;
    std::mutex mutex;
    std::condition_variable called;  // with the mutex, for a thread that sleeps
  };
  static Seat kLooking, kAsleep, kBusy;

  // A process, also beside the one that it was forked from.
  struct Process {
    static Process ThisOne();
    bool operator==(const Process& other) const {
      return identifier == other.identifier && forks == other.forks;
    }
    int identifier;
    unsigned forks;  // between it and the process that loaded the library
  };

  explicit Pool(const Process& process) : process_(process) {}

  void Help(Desk& desk);
  Seat& Await(Desk& desk);
  size_t Give(Seat* seats, size_t count);
  bool MayStartThread();
  size_t StartThreads(Seat* seats, size_t count);
  void TakeBack(Seat* seats, size_t count);
  void AwaitOthers(const std::atomic<size_t>& inside);
  template <class Condition>
  bool Spin(const Condition& condition) const;

  const Process process_;
  std::atomic<size_t> threads_{0}, most_{0};  // that there are, and that there may be
  std::atomic<Desk*> desks_{nullptr};         // the last one made comes first; none is ever removed
  // For callers that sleep until others have left their job.
  std::atomic<size_t> awaiting_{0};
  std::mutex mutex_;
  std::condition_variable left_;
};

}  // namespace bngrad
