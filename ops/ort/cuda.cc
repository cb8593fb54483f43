#include "ort/cuda.hpp"

#include <map>
#include <mutex>

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

const cuda::Cudnn& SharedCudnn() {
  static const cuda::Cudnn& cudnn = *new cuda::Cudnn(cuda::kCudnnLibrary, cuda::kOtherCudnn);
  return cudnn;
}

// A resource of the provider; null if there is none, or if it is zero.
void* ResourceOf(const OrtApi* api, const OrtKernelContext* run, ort::CudaResource id) {
  void* resource = nullptr;
  OrtStatus* const status =
      ort::KernelContext_GetResource(api, run, ort::kCudaResourceVersion, id, &resource);
  if (status == nullptr) return resource;
  ort::ReleaseStatus(api, status);
  return nullptr;
}

class StreamDevice final : public cuda::Device {
 public:
  StreamDevice(const OrtApi* api, const OrtKernelContext* run, cuda::StreamScratch& scratch, void* stream)
      : api_(api), run_(run), driver_(SharedDriver()), scratch_(scratch, stream), stream_(stream) {}
  int processors() const override { return driver_.Processors(); }
  void* Scratch(size_t bytes) override { return scratch_.Take(bytes); }
  void Launch(ElementType module, const std::string& kernel, uint32_t blocks, uint32_t splits,
              const void* argument) override {
    driver_.Launch(module, kernel, blocks, splits, stream_, argument);
  }
  void Zero(void* memory, size_t bytes) override { driver_.Zero(memory, bytes, stream_); }
  cuda::CudnnRun cudnn() override {
    const cuda::Cudnn& cudnn = SharedCudnn();
    void* handle = cudnn.is_only() ? ResourceOf(api_, run_, ort::kCudnnHandle) : nullptr;
    if (handle == nullptr) handle = cudnn.HandleOf(driver_.CurrentContext(), stream_);
    BNGRAD_CUDNN(cudnn, cudnnSetStream, handle, stream_);
    // A bool, in the first byte.
    const bool tf32 = (reinterpret_cast<uintptr_t>(ResourceOf(api_, run_, ort::kUseTf32)) & 0xff) != 0;
    return {cudnn, handle, tf32};
  }

 private:
  const OrtApi* const api_;
  const OrtKernelContext* const run_;
  cuda::Driver& driver_;
  cuda::StreamScratch::Run scratch_;
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

std::shared_ptr<SessionScratch> SessionScratch::Of(const OrtApi* api, const OrtKernelInfo* info) {
  static std::mutex& mutex = *new std::mutex;
  static auto& sessions = *new std::map<const OrtLogger*, std::weak_ptr<SessionScratch>>;
  // The ABI has no name of a session; its logger is its own. Without one the node has memory of its own.
  const OrtLogger* session = nullptr;
  ort::ReleaseStatus(api, ort::KernelInfo_GetLogger(api, info, &session));
  if (session == nullptr) return std::make_shared<SessionScratch>(api, info);
  const std::lock_guard<std::mutex> lock(mutex);
  std::weak_ptr<SessionScratch>& entry = sessions[session];
  std::shared_ptr<SessionScratch> scratch = entry.lock();
  if (scratch == nullptr) entry = scratch = std::make_shared<SessionScratch>(api, info);
  return scratch;
}

void CudaNode::Run(const DeviceNode& node, const RunContext& context, const Types& types,
                   OrtKernelContext* run) {
  void* stream = nullptr;
  Check(api_, ort::KernelContext_GetGPUComputeStream(api_, run, &stream));
  StreamDevice device(api_, run, scratch_->buffers, stream);
  node.RunOnDevice(context, types, device);
}

}  // namespace bngrad
