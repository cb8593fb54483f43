// The scratch memory of one node on a GPU.
//
// A kernel may still wait for the device when the next run of its node is started, so that a buffer may not
// serve two streams, nor be freed between runs: each stream has buffers of its own, which are kept until the
// node is destroyed. They grow by doubling, for nodes with dynamic shapes.
#pragma once
#include <cstddef>
#include <map>
#include <mutex>
#include <vector>

namespace bngrad::cuda {

// An allocator of device memory. Allocate throws.
class Allocator {
 public:
  virtual ~Allocator() = default;
  virtual void* Allocate(size_t size) = 0;
  virtual void Free(void* memory) = 0;
};

class NodeScratch {
  struct Buffer {
    void* memory = nullptr;
    size_t size = 0;
  };

 public:
  explicit NodeScratch(Allocator& allocator) : allocator_(allocator) {}
  ~NodeScratch();
  NodeScratch(const NodeScratch&) = delete;
  NodeScratch& operator=(const NodeScratch&) = delete;

  // The buffers of one run. Other runs wait until it ends: the kernels of two runs on one stream must not
  // alternate.
  class Run {
   public:
    Run(NodeScratch& scratch, void* stream)
        : scratch_(scratch), lock_(scratch.mutex_), buffers_(scratch.buffers_[stream]) {}
    // Memory for the kernels of this run. Throws what the allocator throws.
    void* Take(size_t size);

   private:
    NodeScratch& scratch_;
    const std::lock_guard<std::mutex> lock_;
    std::vector<Buffer>& buffers_;
    size_t taken_ = 0;
  };

 private:
  Allocator& allocator_;
  std::mutex mutex_;
  std::map<void*, std::vector<Buffer>> buffers_;  // by stream, in the order in which a run takes them
  std::vector<void*> outgrown_;
};

}  // namespace bngrad::cuda
