#include "core/cpu_cores.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#if defined(__linux__)
#include <sched.h>

#include "core/cpu_quota.hpp"
#elif defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#endif

namespace bngrad {
namespace {

// Zero if unknown.
size_t CpusOfThread() {
#if defined(__linux__) && defined(CPU_COUNT_S)
  cpu_set_t set[64];  // 65536 CPUs, more than any kernel supports
  if (sched_getaffinity(0, sizeof set, set) == 0) return static_cast<size_t>(CPU_COUNT_S(sizeof set, set));
#elif defined(_WIN32)
  // The CPUs of one processor group, of up to 64. Both masks are 0 in a process of several groups.
  DWORD_PTR process = 0, system = 0;
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &system)) {
    size_t count = 0;
    for (; process != 0; process &= process - 1) ++count;
    return count;
  }
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
    // Out of memory while reading the files: assume no limit.
  }
#endif
  return std::max<size_t>(cores, 1);
}

}  // namespace

size_t CpuCores() noexcept {
  // An atomic, not a guarded static: see Pool::Instance.
  static std::atomic<size_t> cores{0};
  if (cores == 0) cores = Count();
  return cores;
}

}  // namespace bngrad
