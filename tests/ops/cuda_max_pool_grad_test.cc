// max_pool_grad_test.cc with the CUDA kernels on the CPU, their divisions, and planes that are too large.
#include "core/max_pool_grad.hpp"
#include "core/threads.hpp"
#include "cuda/kernels/divisor.h"
#include "cuda/max_pool_grad.hpp"
#include "emulated_device.hpp"

namespace bngrad {

// The test calls this one, because it fits its arguments better than that of core/.
static void MaxPoolGrad(const MaxPoolGradArguments& arguments, PoolThreads&) {
  cuda::EmulatedDevice device;
  cuda::MaxPoolGrad(arguments, device);
}

}  // namespace bngrad

#define main TestWindows
#include "max_pool_grad_test.cc"
#undef main

namespace {

using bngrad::cuda::MakeDivisor;

constexpr int64_t kMost = INT32_MAX;

int TestDivisors() {
  std::mt19937_64 random;
  const auto draw = [&](int64_t least) {  // of any number of bits
    return least + static_cast<int64_t>(random() % (uint64_t{1} << (random() % 31)));
  };
  for (int i = 0; i < 1000000; ++i) {
    const int64_t d = i % 100 == 0 ? kMost : draw(1), at_multiple = draw(0) / d * d - draw(0) % 2;
    for (const int64_t n : {draw(0), std::max<int64_t>(0, at_multiple), kMost}) {
      const uint32_t quotient = bngrad::cuda::Quotient(static_cast<uint32_t>(n), MakeDivisor(d));
      if (quotient == n / d) continue;
      std::printf("%lld / %lld is not %u\n", static_cast<long long>(n), static_cast<long long>(d), quotient);
      return 1;
    }
  }
  return 0;
}

// No array is read.
int TestTooLarge() {
  const PoolAxis one = {1, 1, 1, 1, 1, 0};
  const PoolAxis too_large[][bngrad::kMaxPoolAxes] = {
      {one, one, {kMost + 1, 1, 1, kMost, 1, 0}},
      {one, {1 << 16, 1, 1, 1 << 16, 1, 0}, {1 << 15, 1, 1, 1 << 15, 1, 0}},
      {{1 << 10, 1 << 10, 1, 1, 1, 0}, {1 << 10, 1 << 10, 1, 1, 1, 0}, {1 << 11, 1 << 11, 1, 1, 1, 0}},
      {one, one, {10, 3, 2, 1 << 30, 1, kMost}},                  // padding before X
      {one, one, {10, 3, 2, 1 << 30, 1, 0}},                      // padding after it
      {one, one, {10, 1, 2, 16, kMost, kMost}},                   // padding before X, of one window
      {one, {1, 2, 2, 1, kMost, kMost - 1}, one},                 // a window from before X to after it
      {one, {4, 1 << 16, 1, 1, 1, 0}, {4, 1 << 15, 1, 1, 1, 0}},  // windows
  };
  int accepted = 0;
  for (const auto& axes : too_large) {
    MaxPoolGradArguments a = {bngrad::ElementType::kFloat, 1, {}, nullptr, nullptr, nullptr};
    std::copy_n(axes, bngrad::kMaxPoolAxes, a.axes);
    bngrad::cuda::EmulatedDevice device;
    try {
      bngrad::cuda::MaxPoolGrad(a, device);
      ++accepted;
    } catch (const bngrad::InvalidArgument& error) {
      std::printf("%s\n", error.what());
    }
  }
  return accepted;
}

}  // namespace

int main() { return TestWindows() + TestDivisors() + TestTooLarge(); }
