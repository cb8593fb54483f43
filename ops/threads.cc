#include "threads.hpp"

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace bngrad {

OwnThreads::OwnThreads(int count)
    : threads_(count > 0 ? static_cast<unsigned>(count) : std::max(std::thread::hardware_concurrency(), 1u)) {
}

void OwnThreads::Run(size_t count, void (*task)(void* argument, size_t i), void* argument) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(argument, i);
  };
  std::vector<std::thread> helpers;
  const size_t wanted = std::min<size_t>(threads_, count);
  helpers.reserve(wanted);
  try {
    while (helpers.size() + 1 < wanted) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // The system has no thread left: those that started, and this one, do the work.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

}  // namespace bngrad
