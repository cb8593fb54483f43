// Worker threads use the caller's floating-point mode: results have the same bits for every number of
// threads, and the modes of the caller and of the workers are unchanged after a call.
#include "core/float_mode.hpp"

#include <cfenv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "core/dispatch.hpp"
#include "core/grad.hpp"
#include "core/pool.hpp"
#include "core/threads.hpp"
#include "core/training.hpp"

namespace {

using bngrad::FloatMode;

void Expect(bool condition, const char* mode, const char* what) {
  if (condition) return;
  std::printf("failed: %s: %s\n", mode, what);
  std::exit(1);
}

void FlushToZero() {
#if defined(BNGRAD_X86_64)
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x40;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#elif defined(BNGRAD_AARCH64)
  uint64_t control;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" : : "r"(control | uint64_t{1} << 24) : "memory");
#else
  std::fesetround(FE_TOWARDZERO);  // flush to zero is not portable
#endif
}

struct Mode {
  const char* name;
  void (*set)();
};
const Mode kModes[] = {{"upward", [] { std::fesetround(FE_UPWARD); }},
                       {"downward", [] { std::fesetround(FE_DOWNWARD); }},
                       {"toward zero", [] { std::fesetround(FE_TOWARDZERO); }},
                       {"flush to zero", FlushToZero}};

// NCHW, large enough for eight threads. Some elements are subnormal; products and sums are inexact.
constexpr int64_t kN = 8, kC = 64, kS = 784;
constexpr size_t kElements = kN * kC * kS;

class Problem {
 public:
  Problem() : dy_(kElements), x_(kElements) {
    uint32_t state = 1;
    const auto next = [&state] {
      state = state * 1664525 + 1013904223;
      return static_cast<float>(state >> 8) / (1 << 24) - 0.5F;
    };
    for (size_t i = 0; i < kElements; ++i) {
      dy_[i] = i % 3 == 0 ? next() * 1e-38F : next();
      x_[i] = next() + 3;
    }
  }

  // All outputs of the ops, concatenated.
  std::vector<float> Run(int count) const {
    const int64_t dims[] = {kN, kC, kS}, axes[] = {0, 2};
    const bngrad::Layout layout =
        bngrad::MakeLayout(bngrad::MakeShape("dims", dims, 3), bngrad::MakeShape("axes", axes, 2));
    constexpr auto kFloat = bngrad::ElementType::kFloat;
    const bngrad::Types types = {kFloat, kFloat, kFloat};
    const std::vector<float> ones(kC, 1.1F), zeros(kC, 0);
    std::vector<float> out(3 * kElements + 8 * kC, -1);
    float* const of_channels = out.data() + 3 * kElements;
    const bngrad::KernelTable& table = *bngrad::ActiveIsa().table;
    bngrad::PoolThreads threads(count);
    for (const bool training : {false, true}) {
      const int place = training ? 1 : 0;
      bngrad::Grad(
          layout,
          {types, training, dy_.data(), nullptr, x_.data(), ones.data(), ones.data(), ones.data(),
           out.data() + place * kElements, of_channels + 2 * place * kC, of_channels + (2 * place + 1) * kC},
          table, threads);
    }
    bngrad::Training(layout,
                     {types, 1e-5, 0.9, true, x_.data(), ones.data(), zeros.data(), ones.data(), ones.data(),
                      out.data() + 2 * kElements, of_channels + 4 * kC, of_channels + 5 * kC,
                      of_channels + 6 * kC, of_channels + 7 * kC},
                     table, threads);
    return out;
  }

 private:
  std::vector<float> dy_, x_;
};

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The modes of the pool's threads outside of an op.
void CheckThreads(const char* mode) {
  struct Seen {
    FloatMode caller = FloatMode::OfThread();
    std::atomic<int> same{0}, other{0};
  } seen;
  for (int trial = 0; trial < 1000 && seen.same + seen.other < 4; ++trial) {
    const auto work = [](void* argument, size_t thread) {
      Seen& all = *static_cast<Seen*>(argument);
      if (thread == 0) return std::this_thread::sleep_for(std::chrono::milliseconds(1));
      ++(FloatMode::OfThread() != all.caller ? all.other : all.same);
    };
    bngrad::Pool::Instance().Run(8, work, &seen);
  }
  Expect(seen.same >= 4 && seen.other == 0, mode, "the mode of the workers is restored");
}

}  // namespace

int main() {
  const Problem problem;
  const std::vector<float> plain = problem.Run(8);
  Expect(Same(problem.Run(1), plain), "plain", "the same bits in one thread");
  for (const Mode& mode : kModes) {
    std::fenv_t environment;
    std::fegetenv(&environment);
    mode.set();
    const FloatMode set = FloatMode::OfThread();
    const std::vector<float> alone = problem.Run(1);
    Expect(!Same(alone, plain), mode.name, "the mode affects the results");
    for (const int threads : {2, 3, 8}) {
      for (int call = 0; call < 3; ++call) {
        Expect(Same(problem.Run(threads), alone), mode.name, "the same bits in several threads");
      }
    }
#if defined(BNGRAD_X86_64) || defined(BNGRAD_AARCH64)
    Expect(!(FloatMode::OfThread() != set), mode.name, "the mode of the caller is unchanged");
    std::fesetenv(&environment);
    CheckThreads(mode.name);
#endif
    std::fesetenv(&environment);
    for (const int threads : {1, 2, 8}) {
      Expect(Same(problem.Run(threads), plain), mode.name, "later calls are not affected");
    }
  }
  std::printf("ok\n");
}
