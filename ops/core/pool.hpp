// A pool of threads that persist between calls: starting a thread costs as much as a small op.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>

#include "kernels/kernel.h"

namespace bngrad {

class Pool {
 public:
  using Work = void (*)(void* argument, size_t thread);

  // The pool of this process. It is never destroyed, since its threads outlive main(). A child of fork has
  // none of the threads and gets a new pool. Throws std::bad_alloc.
  static Pool& Instance();

  // Calls work(argument, 0) in this thread and work(argument, 1) to work(argument, threads - 1) concurrently
  // in others, as far as they are available, and returns when all have returned. Each index runs on the same
  // thread as in the previous call if possible. Thread-safe: concurrent callers share the threads, whose
  // number is the largest `threads` of any call, less one. `work` must not throw. Throws std::bad_alloc.
  void Run(size_t threads, Work work, void* argument);

 private:
  struct Mailbox;

  // A job as passed to one thread. It fills one cache line, since each line is a transfer between cores.
  struct alignas(kCacheLine) JobSlot {
    Work work;
    void* argument;
    size_t thread;
    std::atomic<size_t>* pending;  // of the job: slots assigned and neither finished nor withdrawn
    Mailbox* mailbox;              // that it was assigned to
    std::atomic<bool> taken;       // a hint: false may be out of date
  };

  // The mailbox of a thread. `slot` is an assigned job slot or one of three markers of the thread's state. A
  // caller assigns a slot by replacing kPolling or kSleeping; the thread takes it by replacing it with kBusy.
  // Until then the caller can withdraw it.
  struct alignas(kCacheLine) Mailbox {
    std::atomic<JobSlot*> slot;
    Mailbox* next;
    std::mutex mutex;
    std::condition_variable wake;  // with `mutex`, for a sleeping thread
  };
  static JobSlot kPolling, kSleeping, kBusy;

  // Identifies a process, also relative to the process that it was forked from.
  struct Process {
    static Process ThisOne();
    bool operator==(const Process& other) const {
      return identifier == other.identifier && forks == other.forks;
    }
    int identifier;
    unsigned forks;  // generations since the process that loaded the library
  };

  explicit Pool(const Process& process) : process_(process) {}

  void RunWorker(Mailbox& mailbox);
  JobSlot& NextJob(Mailbox& mailbox);
  size_t Assign(JobSlot* slots, size_t count);
  bool ReserveThread();
  size_t StartThreads(JobSlot* slots, size_t count);
  void Withdraw(JobSlot* slots, size_t count);
  void WaitForWorkers(const std::atomic<size_t>& pending);
  template <class Condition>
  bool SpinUntil(const Condition& condition) const;

  const Process process_;
  std::atomic<size_t> threads_{0}, max_threads_{0};  // running, and allowed
  std::atomic<Mailbox*> mailboxes_{nullptr};         // a list, newest first; none is removed
  // For callers that sleep until the workers have finished their job.
  std::atomic<size_t> waiting_callers_{0};
  std::mutex mutex_;
  std::condition_variable finished_;
};

}  // namespace bngrad
