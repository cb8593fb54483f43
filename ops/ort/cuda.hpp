// Nodes on a GPU: what a run of one needs of ONNX Runtime and of NVIDIA's driver.
#pragma once
#include <memory>

#include "cuda/scratch.hpp"
#include "ort/op.hpp"

namespace bngrad {

// With a driver of the tests, whose memory is the CPU's, the ops take the place of those of the CPU.
#if defined(BNGRAD_CUDA_DRIVER)
constexpr bool kCudaIsCpu = true;
constexpr const char* kCudaProvider = "CPUExecutionProvider";
#else
constexpr bool kCudaIsCpu = false;
constexpr const char* kCudaProvider = "CUDAExecutionProvider";
#endif

// The device memory of a session.
class SessionAllocator final : public cuda::Allocator {
 public:
  // api: that of ort::kAllocatorVersion. Throws Failure.
  SessionAllocator(const OrtApi* api, const OrtKernelInfo* info);
  void* Allocate(size_t size) override;
  void Free(void* memory) override;

 private:
  struct Release {
    const OrtApi* api;
    void operator()(OrtAllocator* allocator) const { ort::ReleaseAllocator(api, allocator); }
  };

  const OrtApi* const api_;
  std::unique_ptr<OrtAllocator, Release> allocator_;
};

// The scratch memory of a session, which its nodes share: a workspace of cuDNN may be large.
struct SessionScratch {
  // That of the session of `info`.
  static std::shared_ptr<SessionScratch> Of(const OrtApi* api, const OrtKernelInfo* info);
  SessionScratch(const OrtApi* api, const OrtKernelInfo* info) : allocator(api, info), buffers(allocator) {}

  SessionAllocator allocator;
  cuda::StreamScratch buffers;
};

// A node of a session on a GPU.
class CudaNode {
 public:
  CudaNode(const OrtApi* api, const OrtKernelInfo* info)
      : api_(api), scratch_(SessionScratch::Of(api, info)) {}

  // Starts the kernels of a run on its stream. Throws InvalidArgument and Failure.
  void Run(const DeviceNode& node, const RunContext& context, const Types& types, OrtKernelContext* run);

 private:
  const OrtApi* const api_;
  const std::shared_ptr<SessionScratch> scratch_;
};

}  // namespace bngrad
