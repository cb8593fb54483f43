#include "core/pool.hpp"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>

#if defined(BNGRAD_X86_64)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#define BNGRAD_HAS_FORK
#endif

#include "core/cpu_cores.hpp"
#include "core/small_buffer.hpp"

namespace bngrad {
namespace {

// Waking a sleeping thread takes as long as a small op, so threads spin for this long before they sleep. The
// duration of a pause instruction differs between CPUs, hence a clock.
constexpr std::chrono::microseconds kSpinTime(50);
constexpr int kSpinsPerClockCheck = 8;

void Pause() {
#if defined(BNGRAD_X86_64)
  _mm_pause();
#elif defined(BNGRAD_AARCH64)
  asm volatile("isb");  // `yield` does nothing on most cores
#endif
}

#if defined(BNGRAD_HAS_FORK)
// The handler is registered when the library is loaded, before any pool exists.
std::atomic<unsigned> fork_count{0};
[[maybe_unused]] const int counting = pthread_atfork(nullptr, nullptr, [] { ++fork_count; });
#endif

}  // namespace

// Neither value is sufficient alone: a child in another PID namespace may have its parent's identifier, and
// some ways to fork call no atfork handlers.
Pool::Process Pool::Process::ThisOne() {
#if defined(BNGRAD_HAS_FORK)
  return {getpid(), fork_count};
#else
  return {0, 0};
#endif
}

Pool::JobSlot Pool::kPolling, Pool::kSleeping, Pool::kBusy;

// Lock-free, because the process may fork at any moment: a guarded static, a once_flag or a mutex that
// another thread of the parent holds at the fork stays locked in the child. An atfork handler that creates
// the child's pool would miss forks already in progress.
Pool& Pool::Instance() {
  static std::atomic<Pool*> instance{nullptr};
  const Process process = Process::ThisOne();
  Pool* pool = instance;
  if (pool != nullptr && pool->process_ == process) return *pool;
  std::unique_ptr<Pool> made(new Pool(process));
  // On failure another thread was first, and `pool` is the pool that it stored.
  if (instance.compare_exchange_strong(pool, made.get())) return *made.release();
  return *pool;
}

void Pool::Run(size_t threads, Work work, void* argument) {
  if (threads <= 1) return work(argument, 0);
  const size_t workers = threads - 1;
  for (size_t most = max_threads_; most < workers && !max_threads_.compare_exchange_weak(most, workers);) {
  }
  std::atomic<size_t> pending{workers};
  SmallBuffer<JobSlot, 16> buffer;
  buffer.Allocate(workers);
  JobSlot* const slots = buffer.data();
  for (size_t i = 0; i < workers; ++i) {
    slots[i].work = work;
    slots[i].argument = argument;
    slots[i].thread = i + 1;
    slots[i].pending = &pending;
    slots[i].taken = false;
  }
  const size_t assigned = Assign(slots, workers);
  if (assigned < workers) pending -= workers - assigned;
  work(argument, 0);
  if (pending == 0) return;
  // All work is done: threads that have not taken their slot are not needed.
  Withdraw(slots, assigned);
  WaitForWorkers(pending);
}

// Assigns slots to polling threads, then to sleeping ones, then to new ones. Returns the number of assigned
// slots; the caller does the work of the others.
size_t Pool::Assign(JobSlot* slots, size_t count) {
  size_t assigned = 0;
  const auto assign_to = [&](JobSlot& state) {
    for (Mailbox* mailbox = mailboxes_; mailbox != nullptr && assigned < count; mailbox = mailbox->next) {
      slots[assigned].mailbox = mailbox;
      JobSlot* found = &state;
      if (!mailbox->slot.compare_exchange_strong(found, &slots[assigned])) continue;
      ++assigned;
      if (&state == &kPolling) continue;
      // Holding the mutex once ensures that the thread is waiting or has seen the slot.
      {
        const std::lock_guard<std::mutex> lock(mailbox->mutex);
      }
      mailbox->wake.notify_one();
    }
  };
  assign_to(kPolling);
  if (assigned < count) assign_to(kSleeping);
  return assigned + StartThreads(slots + assigned, count - assigned);
}

// Counts a new thread, which the caller must start, if the limit allows one.
bool Pool::ReserveThread() {
  size_t threads = threads_;
  while (threads < max_threads_) {
    if (threads_.compare_exchange_weak(threads, threads + 1)) return true;
  }
  return false;
}

size_t Pool::StartThreads(JobSlot* slots, size_t count) {
  size_t started = 0;
  for (; started < count && ReserveThread(); ++started) {
    try {
      std::unique_ptr<Mailbox> mailbox(new Mailbox);
      mailbox->slot = &slots[started];
      slots[started].mailbox = mailbox.get();
      std::thread(&Pool::RunWorker, this, std::ref(*mailbox)).detach();
      Mailbox* const made = mailbox.release();
      made->next = mailboxes_;
      while (!mailboxes_.compare_exchange_weak(made->next, made)) {
      }
    } catch (const std::exception&) {
      // No more threads or memory: the existing threads and the caller do the work.
      --threads_;
      break;
    }
  }
  return started;
}

void Pool::Withdraw(JobSlot* slots, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (slots[i].taken) continue;
    JobSlot* found = &slots[i];
    // A thread that was sleeping has been woken and polls again.
    if (slots[i].mailbox->slot.compare_exchange_strong(found, &kPolling)) --*slots[i].pending;
  }
}

void Pool::WaitForWorkers(const std::atomic<size_t>& pending) {
  const auto finished = [&] { return pending == 0; };
  if (SpinUntil(finished)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  ++waiting_callers_;
  finished_.wait(lock, finished);
  --waiting_callers_;
}

void Pool::RunWorker(Mailbox& mailbox) {
  for (;;) {
    JobSlot& slot = NextJob(mailbox);
    std::atomic<size_t>& pending = *slot.pending;
    slot.work(slot.argument, slot.thread);
    // Before `pending` is decremented, since the caller may assign the next job at once. `slot` is invalid
    // after that.
    mailbox.slot = &kPolling;
    if (--pending > 0 || waiting_callers_ == 0) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    finished_.notify_all();
  }
}

Pool::JobSlot& Pool::NextJob(Mailbox& mailbox) {
  for (;;) {
    if (!SpinUntil([&] { return mailbox.slot != &kPolling; })) {
      JobSlot* found = &kPolling;
      if (mailbox.slot.compare_exchange_strong(found, &kSleeping)) {
        std::unique_lock<std::mutex> lock(mailbox.mutex);
        mailbox.wake.wait(lock, [&] { return mailbox.slot != &kSleeping; });
      }
    }
    JobSlot* assigned = mailbox.slot;
    if (assigned == &kPolling || !mailbox.slot.compare_exchange_strong(assigned, &kBusy)) continue;
    // Relaxed: a hint needs no ordering, which would cost another transfer between cores.
    assigned->taken.store(true, std::memory_order_relaxed);
    return *assigned;
  }
}

// Spins until the condition holds or kSpinTime has passed, and returns whether it holds. Does not spin if
// there are more threads than cores: that would take a core from the thread that is waited for.
template <class Condition>
bool Pool::SpinUntil(const Condition& condition) const {
  if (condition()) return true;
  if (threads_ >= CpuCores()) return false;
  const auto end = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < kSpinsPerClockCheck; ++i) {
      Pause();
      if (condition()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace bngrad
