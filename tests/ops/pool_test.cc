// The thread pool with concurrent callers: every task runs once, and its writes are visible to the caller.
// Also built with the thread sanitizer.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "core/threads.hpp"

namespace {

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

// Each task writes to its own element, without a lock.
void Call(int threads, int64_t tasks) {
  bngrad::PoolThreads parallel(threads);
  std::vector<int64_t> written(static_cast<size_t>(tasks), 0);
  std::atomic<int64_t> inside{0};
  bngrad::ForEach(parallel, false, tasks, [&](int64_t i) {
    ++inside;
    written[static_cast<size_t>(i)] += i + 1;
    --inside;
  });
  Expect(inside == 0, "all tasks have finished when Run returns");
  for (int64_t i = 0; i < tasks; ++i) {
    Expect(written[static_cast<size_t>(i)] == i + 1, "every task runs once");
  }
}

}  // namespace

int main() {
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 6; ++caller) {
    callers.emplace_back([caller] {
      for (int call = 0; call < 300; ++call) Call(1 + (caller + call) % 7, call % 41);
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::printf("ok\n");
}
