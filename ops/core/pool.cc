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

#if defined(BNGRAD_HAS_FORK)
// Counted when the library is loaded or later, so before there is a pool to be forked.
std::atomic<unsigned> fork_count{0};
[[maybe_unused]] const int counting = pthread_atfork(nullptr, nullptr, [] { ++fork_count; });
#endif

}  // namespace

// Neither number alone will do: a child in a namespace of its own may have its parent's identifier, and there
// are ways to fork that call no handler.
Pool::Process Pool::Process::ThisOne() {
#if defined(BNGRAD_HAS_FORK)
  return {getpid(), fork_count};
#else
  return {0, 0};
#endif
}

Pool::Seat Pool::kLooking, Pool::kAsleep, Pool::kBusy;

// A handler that makes the child's pool would come too late for a fork that has begun, and a guarded static,
// a once_flag or a mutex would stay locked in a child that is made while a thread of the parent is inside.
Pool& Pool::OfProcess() {
  static std::atomic<Pool*> of_process{nullptr};
  const Process process = Process::ThisOne();
  Pool* pool = of_process;
  if (pool != nullptr && pool->process_ == process) return *pool;
  std::unique_ptr<Pool> made(new Pool(process));
  // Another thread of this process may have been faster: `pool` is then that one's.
  if (of_process.compare_exchange_strong(pool, made.get())) return *made.release();
  return *pool;
}

void Pool::Run(size_t threads, Work work, void* argument) {
  if (threads <= 1) return work(argument, 0);
  const size_t wanted = threads - 1;
  for (size_t most = most_; most < wanted && !most_.compare_exchange_weak(most, wanted);) {
  }
  std::atomic<size_t> inside{wanted};
  FewOrMany<Seat, 16> room;
  room.Allocate(wanted);
  Seat* const seats = room.get();
  for (size_t i = 0; i < wanted; ++i) {
    seats[i].work = work;
    seats[i].argument = argument;
    seats[i].number = i + 1;
    seats[i].inside = &inside;
    seats[i].taken = false;
  }
  const size_t given = Give(seats, wanted);
  if (given < wanted) inside -= wanted - given;
  work(argument, 0);
  if (inside == 0) return;
  // There is nothing left to do for who has not come yet.
  TakeBack(seats, given);
  AwaitOthers(inside);
}

// Puts seats on desks, and returns how many: those of threads that look, then of those that sleep, then of
// new ones. Where other callers have them all, this one does the work.
size_t Pool::Give(Seat* seats, size_t count) {
  size_t given = 0;
  const auto give = [&](Seat& instead_of) {
    for (Desk* desk = desks_; desk != nullptr && given < count; desk = desk->next) {
      seats[given].desk = desk;
      Seat* found = &instead_of;
      if (!desk->seat.compare_exchange_strong(found, &seats[given])) continue;
      ++given;
      if (&instead_of == &kLooking) continue;
      // With the mutex it is asleep, or has seen the seat.
      {
        const std::lock_guard<std::mutex> lock(desk->mutex);
      }
      desk->called.notify_one();
    }
  };
  give(kLooking);
  if (given < count) give(kAsleep);
  return given + StartThreads(seats + given, count - given);
}

// Whether there is one thread less than there may be: then the caller is to start it, and it counts.
bool Pool::MayStartThread() {
  size_t threads = threads_;
  while (threads < most_) {
    if (threads_.compare_exchange_weak(threads, threads + 1)) return true;
  }
  return false;
}

size_t Pool::StartThreads(Seat* seats, size_t count) {
  size_t started = 0;
  for (; started < count && MayStartThread(); ++started) {
    try {
      std::unique_ptr<Desk> desk(new Desk);
      desk->seat = &seats[started];
      seats[started].desk = desk.get();
      std::thread(&Pool::Help, this, std::ref(*desk)).detach();
      Desk* const made = desk.release();
      made->next = desks_;
      while (!desks_.compare_exchange_weak(made->next, made)) {
      }
    } catch (const std::exception&) {
      // The system has no thread, or no memory, left: those that there are, and the caller, do the work.
      --threads_;
      break;
    }
  }
  return started;
}

void Pool::TakeBack(Seat* seats, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (seats[i].taken) continue;
    Seat* found = &seats[i];
    // One that was asleep has been called, and will look again.
    if (seats[i].desk->seat.compare_exchange_strong(found, &kLooking)) --*seats[i].inside;
  }
}

void Pool::AwaitOthers(const std::atomic<size_t>& inside) {
  const auto alone = [&] { return inside == 0; };
  if (Spin(alone)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  ++awaiting_;
  left_.wait(lock, alone);
  --awaiting_;
}

void Pool::Help(Desk& desk) {
  for (;;) {
    Seat& seat = Await(desk);
    std::atomic<size_t>& inside = *seat.inside;
    seat.work(seat.argument, seat.number);
    // Looking before the seat is left, for the caller may come with another at once; from then on there is no
    // `seat`.
    desk.seat = &kLooking;
    if (--inside > 0 || awaiting_ == 0) continue;
    const std::lock_guard<std::mutex> lock(mutex_);
    left_.notify_all();
  }
}

Pool::Seat& Pool::Await(Desk& desk) {
  for (;;) {
    if (!Spin([&] { return desk.seat != &kLooking; })) {
      Seat* found = &kLooking;
      if (desk.seat.compare_exchange_strong(found, &kAsleep)) {
        std::unique_lock<std::mutex> lock(desk.mutex);
        desk.called.wait(lock, [&] { return desk.seat != &kAsleep; });
      }
    }
    Seat* given = desk.seat;
    if (given == &kLooking || !desk.seat.compare_exchange_strong(given, &kBusy)) continue;
    // In no order with anything else, which would take as long as fetching the seat did.
    given->taken.store(true, std::memory_order_relaxed);
    return *given;
  }
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
