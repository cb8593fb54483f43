#include "pool.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>

#if defined(BNGRAD_X86_64)
#include <immintrin.h>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "cpu_features.hpp"

namespace bngrad {
namespace {

// Waking a thread that sleeps takes as long as a small op, so a thread first looks for this long whether what
// it waits for has come. By the clock: a pause is 10 ns on one CPU and 50 on another (measured on the former,
// beside a thousand pauses: 1568x1024 1.1 to 1.2, 8x512x784 1.06 to 1.08 times as fast).
constexpr std::chrono::microseconds kPatience(50);
constexpr int kLooks = 8;  // from one look at the clock to the next

void Pause() {
#if defined(BNGRAD_X86_64)
  _mm_pause();
#elif defined(BNGRAD_AARCH64)
  asm volatile("isb");  // `yield` is over at once on most cores
#endif
}

int ProcessId() {
#if defined(__unix__) || defined(__APPLE__)
  return getpid();
#else
  return 0;  // there is no fork
#endif
}

}  // namespace

// A handler of pthread_atfork would come too late for a fork that has begun, and a guarded static or a
// once_flag would stay locked in a child that is made while a thread of the parent is inside.
Pool& Pool::OfProcess() {
  static std::atomic<Pool*> of_process{nullptr};
  Pool* pool = of_process;
  if (pool != nullptr && pool->process_ == ProcessId()) return *pool;
  std::unique_ptr<Pool> made(new Pool(ProcessId()));
  // Another thread of this process may have been faster: `pool` is then that one's.
  if (of_process.compare_exchange_strong(pool, made.get())) return *made.release();
  return *pool;
}

void Pool::Run(size_t threads, const std::function<void(size_t)>& work) {
  if (threads <= 1) return work(0);
  Job job{work, threads - 1, 0};
  Offer(job);
  work(0);
  // There is nothing left to do for who has not come yet.
  if (job.seats > 0) Withdraw(job);
  AwaitOthers(job);
}

void Pool::Offer(Job& job) {
  size_t sleeping;
  {
    const std::unique_lock<std::mutex> lock = Lock();
    jobs_.push_back(&job);
    StartThreads(seats_ + job.seats);
    sleeping = std::min<size_t>(sleeping_, job.seats);
    seats_ += job.seats;
  }
  for (size_t i = 0; i < sleeping; ++i) called_.notify_one();
}

void Pool::Withdraw(Job& job) {
  const std::unique_lock<std::mutex> lock = Lock();
  if (job.seats == 0) return;
  jobs_.erase(std::find(jobs_.begin(), jobs_.end(), &job));
  seats_ -= job.seats;
}

// Without the mutex, unless it takes long.
void Pool::AwaitOthers(Job& job) {
  const auto alone = [&] { return job.inside == 0; };
  if (Spin(alone)) return;
  std::unique_lock<std::mutex> lock = Lock();
  ++awaiting_;
  left_.wait(lock, alone);
  --awaiting_;
}

// So many that none of the seats needs one that works, with the mutex held.
void Pool::StartThreads(size_t seats) {
  try {
    for (; idle_ < seats; ++idle_, ++threads_) std::thread(&Pool::Help, this).detach();
  } catch (const std::exception&) {
    // The system has no thread, or no memory, left: those that there are, and the caller, do the work.
  }
}

void Pool::Help() {
  for (;;) {
    Spin([&] { return seats_ > 0; });
    std::unique_lock<std::mutex> lock = Lock();
    ++sleeping_;
    called_.wait(lock, [&] { return !jobs_.empty(); });
    --sleeping_;
    Job& job = *jobs_.front();
    // Inside before the seat is taken, for the caller does not hold the mutex when it sees that none is left.
    ++job.inside;
    --idle_;
    --seats_;
    const size_t seat = job.seats--;
    if (seat == 1) jobs_.pop_front();
    lock.unlock();
    job.work(seat);
    // Idle before it is left, for the caller may come with another at once; from then on there is no `job`.
    ++idle_;
    if (--job.inside > 0 || awaiting_ == 0) continue;
    lock = Lock();
    left_.notify_all();
  }
}

// Others hold the mutex for less time than it takes to sleep until they do not, which would cost them a call
// of the system, too (measured, two threads: 2.3 such calls a gradient of 392x512, which takes 1.03 times as
// long).
std::unique_lock<std::mutex> Pool::Lock() {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (!Spin([&] { return lock.try_lock(); })) lock.lock();
  return lock;
}

// Whether a condition holds: looks for a while, unless that would take a core from who is to make it hold.
template <class Condition>
bool Pool::Spin(const Condition& condition) const {
  if (condition()) return true;
  if (threads_ >= CpuCores()) return false;
  const auto end = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < kLooks; ++i) {
      Pause();
      if (condition()) return true;
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace bngrad
