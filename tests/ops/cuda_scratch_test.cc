// The scratch memory of a session on a GPU: what runs of one stream share, and what those of two do not.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuda/scratch.hpp"

namespace {

using bngrad::cuda::StreamScratch;

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

class CountingAllocator final : public bngrad::cuda::Allocator {
 public:
  void* Allocate(size_t size) override {
    if (size > 1 << 20) throw std::runtime_error("out of memory");
    bytes += size;
    return *blocks.insert(std::malloc(size)).first;
  }
  void Free(void* memory) override {
    Expect(blocks.erase(memory) == 1, "only what was allocated is freed, once");
    std::free(memory);
  }

  std::set<void*> blocks;
  size_t bytes = 0;
};

void* const kStreams[] = {nullptr, reinterpret_cast<void*>(0x10), reinterpret_cast<void*>(0x20)};

}  // namespace

int main() {
  CountingAllocator allocator;
  {
    StreamScratch scratch(allocator);
    std::set<void*> first, all;
    for (void* const stream : kStreams) {
      StreamScratch::Run run(scratch, stream);
      all.insert({run.Take(100), run.Take(50), run.Take(0)});
      if (stream == nullptr) first = all;
    }
    Expect(all.size() == 9 && all.count(nullptr) == 0, "streams and arrays have memory of their own");
    {
      StreamScratch::Run run(scratch, nullptr);
      const std::set<void*> again = {run.Take(99), run.Take(50), run.Take(1)};
      Expect(again == first && allocator.blocks.size() == 9, "the next run of a stream has the same memory");
    }
    void* grown = nullptr;
    {
      StreamScratch::Run run(scratch, nullptr);
      try {
        run.Take(2 << 20);
        Expect(false, "an error of the allocator is thrown");
      } catch (const std::runtime_error&) {
      }
    }
    {
      StreamScratch::Run run(scratch, nullptr);
      grown = run.Take(101);
      Expect(first.count(grown) == 0 && allocator.blocks.size() == 10,
             "kernels may still use what is too small");
    }
    StreamScratch::Run run(scratch, nullptr);
    Expect(run.Take(200) == grown, "it grows by doubling");
  }
  Expect(allocator.blocks.empty(), "all is freed with the node");

  StreamScratch scratch(allocator);
  std::atomic<int> inside{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&] {
      for (int call = 0; call < 1000; ++call) {
        StreamScratch::Run run(scratch, kStreams[call % 2]);
        Expect(++inside == 1, "one run at a time starts its kernels");
        run.Take(static_cast<size_t>(call % 7));
        --inside;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::printf("ok\n");
}
