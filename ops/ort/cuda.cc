#include "ort/cuda.hpp"

#include "cuda/device.hpp"
#include "cuda/driver.hpp"
#include "cuda/ptx.hpp"
#include "ort/status.hpp"

namespace bngrad {
namespace {

// Never released: at exit the driver may be gone before this library.
cuda::Driver& SharedDriver() {
  static cuda::Driver& driver = *new cuda::Driver(cuda::kDriverLibrary, cuda::ModuleText);
  return driver;
}

class StreamDevice final : public cuda::Device {
 public:
  StreamDevice(cuda::NodeScratch& scratch, void* stream)
      : driver_(SharedDriver()), scratch_(scratch, stream), stream_(stream) {}
  int processors() const override { return driver_.Processors(); }
  void* Scratch(size_t bytes) override { return scratch_.Take(bytes); }
  void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
              const void* argument) override {
    driver_.Launch(module, kernel, blocks, splits, stream_, argument);
  }

 private:
  cuda::Driver& driver_;
  cuda::NodeScratch::Run scratch_;
  void* const stream_;
};

}  // namespace

SessionAllocator::SessionAllocator(const OrtApi* api, const OrtKernelInfo* info)
    : api_(api), allocator_(nullptr, {api}) {
  OrtAllocator* allocator = nullptr;
  Check(api, ort::KernelInfoGetAllocator(api, info, ort::kDefaultMemory, &allocator));
  allocator_.reset(allocator);
}

void* SessionAllocator::Allocate(size_t size) {
  void* memory = nullptr;
  Check(api_, ort::AllocatorAlloc(api_, allocator_.get(), size, &memory));
  return memory;
}

void SessionAllocator::Free(void* memory) {
  ort::ReleaseStatus(api_, ort::AllocatorFree(api_, allocator_.get(), memory));
}

void CudaNode::Run(const DeviceNode& node, const RunContext& context, const Types& types,
                   OrtKernelContext* run) {
  void* stream = nullptr;
  Check(api_, ort::KernelContext_GetGPUComputeStream(api_, run, &stream));
  StreamDevice device(scratch_, stream);
  node.RunOnDevice(context, types, device);
}

}  // namespace bngrad
