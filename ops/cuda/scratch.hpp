// The scratch memory of the nodes of a session on a GPU.
//
// A kernel may still wait for the device when the next node is started, so that a buffer may not serve two
// streams, nor be freed between runs: each stream has buffers of its own, which are kept until the session
// ends. They grow by doubling, for dynamic shapes, but large ones by little more than is needed.
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

class StreamScratch {
  struct Buffer {
    void* memory = nullptr;
    size_t size = 0;
  };

 public:
  explicit StreamScratch(Allocator& allocator) : allocator_(allocator) {}
  ~StreamScratch();
  StreamScratch(const StreamScratch&) = delete;
  StreamScratch& operator=(const StreamScratch&) = delete;

  // The buffers of one run of a node. Other runs wait until it ends: the kernels of two on one stream must
  // not alternate.
  class Run {
   public:
    Run(StreamScratch& scratch, void* stream)
        : scratch_(scratch), lock_(scratch.mutex_), buffers_(scratch.buffers_[stream]) {}
    // Memory for the kernels of this run. Throws what the allocator throws.
    void* Take(size_t size);

   private:
    StreamScratch& scratch_;
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
