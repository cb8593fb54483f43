#include "core/cpu_cores.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#if defined(__linux__)
#include <sched.h>

#include "core/cpu_quota.hpp"
#endif

namespace bngrad {
namespace {

// Zero where the system does not say.
size_t CpusOfThread() {
#if defined(__linux__) && defined(CPU_COUNT_S)
  cpu_set_t set[64];  // for more CPUs than any kernel is built for
  if (sched_getaffinity(0, sizeof set, set) == 0) return static_cast<size_t>(CPU_COUNT_S(sizeof set, set));
#endif
  return 0;
}

size_t Count() noexcept {
  size_t cores = std::thread::hardware_concurrency();
  const auto limit = [&cores](size_t most) {
    if (most > 0 && (cores == 0 || most < cores)) cores = most;
  };
  limit(CpusOfThread());
#if defined(__linux__)
  try {
    limit(CpuQuota(""));
  } catch (...) {
    // No memory to read files: no limit.
  }
#endif
  return std::max<size_t>(cores, 1);
}

}  // namespace

size_t CpuCores() noexcept {
  // No guarded static: see Pool::OfProcess.
  static std::atomic<size_t> cores{0};
  if (cores == 0) cores = Count();
  return cores;
}

}  // namespace bngrad
