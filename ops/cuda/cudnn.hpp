// cuDNN, found at run time: the functions of its convolutions, by their names there. Handles and descriptors
// are void*, and enumerations int.
#pragma once
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace bngrad::cuda {

// What cuDNN expects of an algorithm.
struct CudnnAlgorithm {
  int algorithm;
  int status;
  float time;
  size_t workspace;
  int deterministic;
  int math;
  int reserved[3];
};
static_assert(sizeof(CudnnAlgorithm) == 48, "as in cuDNN");

#define BNGRAD_CUDNN_FUNCTIONS(F)                                                                           \
  F(cudnnCreate, void** handle)                                                                             \
  F(cudnnSetStream, void* handle, void* stream)                                                             \
  F(cudnnCreateTensorDescriptor, void** tensor)                                                             \
  F(cudnnSetTensorNdDescriptor, void* tensor, int type, int rank, const int* dims, const int* strides)      \
  F(cudnnDestroyTensorDescriptor, void* tensor)                                                             \
  F(cudnnCreateFilterDescriptor, void** filter)                                                             \
  F(cudnnSetFilterNdDescriptor, void* filter, int type, int format, int rank, const int* dims)              \
  F(cudnnDestroyFilterDescriptor, void* filter)                                                             \
  F(cudnnCreateConvolutionDescriptor, void** convolution)                                                   \
  F(cudnnSetConvolutionNdDescriptor, void* convolution, int rank, const int* pads, const int* strides,      \
    const int* dilations, int mode, int type)                                                               \
  F(cudnnSetConvolutionGroupCount, void* convolution, int count)                                            \
  F(cudnnSetConvolutionMathType, void* convolution, int math)                                               \
  F(cudnnDestroyConvolutionDescriptor, void* convolution)                                                   \
  F(cudnnGetConvolutionForwardAlgorithm_v7, void* handle, void* x, void* w, void* convolution, void* y,     \
    int count, int* returned, CudnnAlgorithm* algorithms)                                                   \
  F(cudnnGetConvolutionForwardWorkspaceSize, void* handle, void* x, void* w, void* convolution, void* y,    \
    int algorithm, size_t* bytes)                                                                           \
  F(cudnnConvolutionForward, void* handle, const void* alpha, void* x, const void* x_data, void* w,         \
    const void* w_data, void* convolution, int algorithm, void* workspace, size_t bytes, const void* beta,  \
    void* y, void* y_data)                                                                                  \
  F(cudnnGetConvolutionBackwardFilterAlgorithm_v7, void* handle, void* x, void* dy, void* convolution,      \
    void* dw, int count, int* returned, CudnnAlgorithm* algorithms)                                         \
  F(cudnnGetConvolutionBackwardFilterWorkspaceSize, void* handle, void* x, void* dy, void* convolution,     \
    void* dw, int algorithm, size_t* bytes)                                                                 \
  F(cudnnConvolutionBackwardFilter, void* handle, const void* alpha, void* x, const void* x_data, void* dy, \
    const void* dy_data, void* convolution, int algorithm, void* workspace, size_t bytes, const void* beta, \
    void* dw, void* dw_data)                                                                                \
  F(cudnnGetConvolutionBackwardDataAlgorithm_v7, void* handle, void* w, void* dy, void* convolution,        \
    void* dx, int count, int* returned, CudnnAlgorithm* algorithms)                                         \
  F(cudnnGetConvolutionBackwardDataWorkspaceSize, void* handle, void* w, void* dy, void* convolution,       \
    void* dx, int algorithm, size_t* bytes)                                                                 \
  F(cudnnConvolutionBackwardData, void* handle, const void* alpha, void* w, const void* w_data, void* dy,   \
    const void* dy_data, void* convolution, int algorithm, void* workspace, size_t bytes, const void* beta, \
    void* dx, void* dx_data)

class Cudnn {
 public:
  // The copy of `library` that the process has, or else the one that is installed. `other` is that of another
  // major version. Throws Failure, which says what to install.
  Cudnn(const char* library, const char* other);

#define BNGRAD_DECLARE(name, ...) int (*name)(__VA_ARGS__) = nullptr;
  BNGRAD_CUDNN_FUNCTIONS(BNGRAD_DECLARE)
#undef BNGRAD_DECLARE

  // Throws Failure for an error of a function.
  void Check(int status, const char* function) const;

  // True if the process has no cuDNN of another version, from which a handle may be.
  bool is_only() const { return is_only_; }

  // A handle of our own for runs on a stream of a context, which is kept. Throws Failure.
  void* HandleOf(void* context, void* stream) const;

 private:
  const char* (*cudnnGetErrorString)(int status) = nullptr;
  bool is_only_ = false;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<void*, void*>, void*> handles_;
};

// A call that is checked.
#define BNGRAD_CUDNN(cudnn, name, ...) (cudnn).Check((cudnn).name(__VA_ARGS__), #name)

#if defined(BNGRAD_CUDNN_LIBRARY)
constexpr const char* kCudnnLibrary = BNGRAD_CUDNN_LIBRARY;  // the tests
constexpr const char* kOtherCudnn = "libcudnn.so.8";
#elif defined(_WIN32)
constexpr const char* kCudnnLibrary = "cudnn64_9.dll";
constexpr const char* kOtherCudnn = "cudnn64_8.dll";
#else
constexpr const char* kCudnnLibrary = "libcudnn.so.9";
constexpr const char* kOtherCudnn = "libcudnn.so.8";
#endif

// cuDNN in a run of a node.
struct CudnnRun {
  const Cudnn& cudnn;
  void* handle;  // for the run's stream
  bool tf32;     // the factors of float32 may be rounded to TF32
};

}  // namespace bngrad::cuda
