#include "cuda_emulation.hpp"

#include <ucontext.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "cuda/kernels/adam.h"
#include "cuda/kernels/all_finite.h"
#include "cuda/kernels/copy.h"
#include "cuda/kernels/finish.h"
#include "cuda/kernels/lion.h"
#include "cuda/kernels/maps.h"
#include "cuda/kernels/max_pool_grad.h"
#include "cuda/kernels/rmsprop.h"
#include "cuda/kernels/sgd.h"
#include "cuda/kernels/sums.h"

namespace bngrad::cuda {
namespace {

#include "kernels/float16-inl.h"

std::map<std::string, Kernel>& Kernels() {
  static std::map<std::string, Kernel> kernels;
  return kernels;
}

struct Registered {
  Registered(const char* module, const char* name, Kernel kernel) {
    Kernels()[std::string(module) + " " + name] = kernel;
  }
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  bool done;
};

constexpr size_t kStack = 64 << 10;

struct Block {
  uint32_t x, y, thread;
  Kernel kernel;
  const void* argument;
  ucontext_t scheduler;
  Thread threads[kThreads];
} block;

void RunThread() {
  block.kernel(block.argument);
  block.threads[block.thread].done = true;
}

// Every thread to its next barrier, in turn, until all are done.
void RunBlock() {
  for (Thread& thread : block.threads) {
    if (thread.stack == nullptr) thread.stack.reset(new char[kStack]);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStack;
    thread.context.uc_link = &block.scheduler;
    thread.done = false;
    makecontext(&thread.context, RunThread, 0);
  }
  for (bool running = true; running;) {
    running = false;
    for (block.thread = 0; block.thread < kThreads; ++block.thread) {
      Thread& thread = block.threads[block.thread];
      if (thread.done) continue;
      running = true;
      swapcontext(&block.scheduler, &thread.context);
    }
  }
}

}  // namespace

uint32_t ThreadIndex() { return block.thread; }
uint32_t BlockIndexX() { return block.x; }
uint32_t BlockIndexY() { return block.y; }
void Barrier() { swapcontext(&block.threads[block.thread].context, &block.scheduler); }
double SquareRoot(double value) { return std::sqrt(value); }
float SquareRoot(float value) { return std::sqrt(value); }
uint32_t HighProduct(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
float Widened(Float16 value) { return ToFloat(value); }
void Narrow(float value, Float16* to) { FromFloat(value, to); }

Kernel FindKernel(const std::string& module, const std::string& name) {
  const auto entry = Kernels().find(module + " " + name);
  return entry == Kernels().end() ? nullptr : entry->second;
}

void RunGrid(Kernel kernel, uint32_t blocks, uint32_t splits, const void* argument) {
  block.kernel = kernel;
  block.argument = argument;
  for (block.y = 0; block.y < splits; ++block.y) {
    for (block.x = 0; block.x < blocks; ++block.x) RunBlock();
  }
}

}  // namespace bngrad::cuda

#define BNGRAD_TEXT(name) #name
#define BNGRAD_TEXT_OF(name) BNGRAD_TEXT(name)
#define BNGRAD_KERNEL(name, Arguments, body)                                                          \
  const Registered registered_##name(BNGRAD_TEXT_OF(BNGRAD_MODULE), #name, [](const void* argument) { \
    const Arguments& a = *static_cast<const Arguments*>(argument);                                    \
    body;                                                                                             \
  });

#define BNGRAD_MODULE float32
#define BNGRAD_T float
#include "cuda/kernels/kernels.cu"
#undef BNGRAD_MODULE
#undef BNGRAD_T
#define BNGRAD_MODULE float64
#define BNGRAD_T double
#include "cuda/kernels/kernels.cu"
#undef BNGRAD_MODULE
#undef BNGRAD_T
#define BNGRAD_MODULE float16
#define BNGRAD_T Float16
#include "cuda/kernels/kernels.cu"
#undef BNGRAD_MODULE
#undef BNGRAD_T
#define BNGRAD_MODULE bfloat16
#define BNGRAD_T BFloat16
#include "cuda/kernels/kernels.cu"
