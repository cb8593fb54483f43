#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "pool.hpp"

namespace bngrad {

OwnThreads::OwnThreads(int count)
    : threads_(count > 0 ? static_cast<unsigned>(count) : std::max(std::thread::hardware_concurrency(), 1u)) {
}

void OwnThreads::Run(size_t count, void (*task)(void* argument, size_t i), void* argument) {
  std::atomic<size_t> next{0};
  const auto take_tasks = [&] {
    for (size_t i = next++; i < count; i = next++) task(argument, i);
  };
  Pool::OfProcess().Run(std::min<size_t>(threads_, count), take_tasks);
}

}  // namespace bngrad
