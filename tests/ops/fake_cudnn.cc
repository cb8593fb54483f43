// A library with the functions of cuDNN that the ops call, for arrays of the CPU: the gradients of a
// convolution from its descriptors, in double, in plain loops. It fails where the environment says so:
//   FAKE_CUDNN_FAIL=cudnnCreate   this function returns an error
//   FAKE_CUDNN_VERSION=8902       the version
//   FAKE_CUDNN_CHOICE=none        no algorithm is proposed
//   FAKE_CUDNN_LAYOUT=last        no array may have channels first; =first: or last
//   FAKE_CUDNN_TF32=1             float has to be multiplied in TF32; otherwise it must not
// With channels last it takes two spatial dimensions and one group, and no double.
// Declared here as in cuDNN's headers, and not by ops/cuda/cudnn.hpp.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace bngrad {
namespace {
#include "kernels/float16-inl.h"
}
}  // namespace bngrad

namespace {

constexpr int kSuccess = 0, kBadParam = 2000, kShapeMismatch = 2008, kNotSupported = 3000,
              kExecutionFailed = 5000;
constexpr size_t kWorkspace = 4096;
int calls_that_create = 0;

bool Is(const char* variable, const char* value) {
  const char* const text = std::getenv(variable);
  return text != nullptr && std::strcmp(text, value) == 0;
}

int Result(const char* function) { return Is("FAKE_CUDNN_FAIL", function) ? kExecutionFailed : kSuccess; }

int Creates(const char* function) {
  ++calls_that_create;
  return Result(function);
}

struct Handle {
  void* stream;
};
struct Tensor {
  int type = 0;
  std::vector<int> dims, strides;  // of [N, C, *spatial], whatever the order in memory
  bool last = false;               // the channels, in memory

  Tensor() = default;
  Tensor(int of, int rank, const int* sizes, bool channels_last)
      : type(of), dims(sizes, sizes + rank), strides(dims.size()), last(channels_last) {
    int stride = last ? dims[1] : 1;
    for (size_t i = dims.size(); i-- > 2; stride *= dims[i]) strides[i] = stride;
    strides[1] = last ? 1 : stride;
    strides[0] = last ? stride : stride * dims[1];
  }
  // The offset of an element at three spatial indices.
  size_t At(int n, int channel, const int* places) const {
    int offset = n * strides[0] + channel * strides[1];
    for (size_t i = 2; i < dims.size(); ++i) offset += places[i + 3 - dims.size()] * strides[i];
    return static_cast<size_t>(offset);
  }
};
struct Convolution {
  std::vector<int> pads, strides, dilations;
  int type, groups = 1, math = 0;
};

// Elements by their type: float, double, half, bfloat16.
double Load(int type, const void* data, size_t i) {
  if (type == 0) return static_cast<const float*>(data)[i];
  if (type == 1) return static_cast<const double*>(data)[i];
  if (type == 2) return bngrad::ToFloat(static_cast<const bngrad::Float16*>(data)[i]);
  return bngrad::ToFloat(static_cast<const bngrad::BFloat16*>(data)[i]);
}

void Store(int type, void* data, size_t i, double value) {
  const float narrow = static_cast<float>(value);
  if (type == 0) static_cast<float*>(data)[i] = narrow;
  if (type == 1) static_cast<double*>(data)[i] = value;
  if (type == 2) bngrad::FromFloat(narrow, static_cast<bngrad::Float16*>(data) + i);
  if (type == 9) bngrad::FromFloat(narrow, static_cast<bngrad::BFloat16*>(data) + i);
}

// Calls with each product: its elements of X, W and dY.
template <class Body>
int ForEachProduct(const Tensor& x, const Tensor& w, const Tensor& dy, const Convolution& c,
                   const Body& body) {
  const size_t rank = x.dims.size(), spatial = rank - 2;
  if (w.dims.size() != rank || dy.dims.size() != rank || c.pads.size() != spatial) return kBadParam;
  if (x.type != w.type || x.type != dy.type || c.type != (x.type == 1 ? 1 : 0)) return kBadParam;
  const int channels = w.dims[1], outputs = w.dims[0] / c.groups;
  if (x.dims[1] != channels * c.groups || dy.dims[1] != outputs * c.groups || x.dims[0] != dy.dims[0]) {
    return kShapeMismatch;
  }
  int out[3] = {1, 1, 1}, in[3] = {1, 1, 1}, kernel[3] = {1, 1, 1}, pad[3] = {}, step[3] = {1, 1, 1},
      dilation[3] = {1, 1, 1};
  for (size_t i = 0; i < spatial; ++i) {
    const size_t to = 3 - spatial + i;
    out[to] = dy.dims[i + 2];
    in[to] = x.dims[i + 2];
    kernel[to] = w.dims[i + 2];
    pad[to] = c.pads[i];
    step[to] = c.strides[i];
    dilation[to] = c.dilations[i];
    const int window = c.dilations[i] * (kernel[to] - 1) + 1;
    if (out[to] != (in[to] + 2 * pad[to] - window) / step[to] + 1) return kShapeMismatch;
  }
  const int places = out[0] * out[1] * out[2], taps = kernel[0] * kernel[1] * kernel[2];
  for (int n = 0; n < x.dims[0]; ++n) {
    for (int m = 0; m < dy.dims[1]; ++m) {
      for (int place = 0; place < places; ++place) {
        for (int k = 0; k < channels; ++k) {
          for (int tap = 0; tap < taps; ++tap) {
            const int o[3] = {place / (out[1] * out[2]), place / out[2] % out[1], place % out[2]};
            const int t[3] = {tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]};
            int at[3];
            bool inside = true;
            for (int i = 0; i < 3; ++i) {
              at[i] = o[i] * step[i] + t[i] * dilation[i] - pad[i];
              inside = inside && at[i] >= 0 && at[i] < in[i];
            }
            if (inside) body(x.At(n, m / outputs * channels + k, at), w.At(m, k, t), dy.At(n, m, o));
          }
        }
      }
    }
  }
  return kSuccess;
}

size_t CountOf(const Tensor& tensor) {
  size_t count = 1;
  for (const int size : tensor.dims) count *= static_cast<size_t>(size);
  return count;
}

double Scalar(int type, const void* value) {
  return type == 1 ? *static_cast<const double*>(value) : *static_cast<const float*>(value);
}

// The result of `alpha` times sums plus `beta` times what there was.
void Blend(const Tensor& to, void* data, const std::vector<double>& sums, const void* alpha,
           const void* beta) {
  const double a = Scalar(to.type, alpha), b = Scalar(to.type, beta);
  for (size_t i = 0; i < sums.size(); ++i) {
    Store(to.type, data, i, a * sums[i] + (b == 0 ? 0 : b * Load(to.type, data, i)));
  }
}

// The arithmetic that a type has to have.
int MathOf(int type) {
  if (type == 0) return Is("FAKE_CUDNN_TF32", "1") ? 0 : 3;
  return type == 1 ? 0 : 1;
}

// Tests whether all three have one layout, and cuDNN takes it.
bool Takes(const Tensor& x, const Tensor& w, const Tensor& dy, const Convolution& c) {
  if (x.last != w.last || x.last != dy.last) return false;
  if (!x.last) return !Is("FAKE_CUDNN_LAYOUT", "last");
  return x.type != 1 && x.dims.size() == 4 && c.groups == 1 && !Is("FAKE_CUDNN_LAYOUT", "first");
}

// False for what the ops must not take: see Propose.
bool Runs(int algorithm, const Convolution& c, int type, void* workspace, size_t bytes) {
  if (c.math != MathOf(type) || (algorithm == 1 ? bytes != 0 : algorithm != 5 || bytes != kWorkspace))
    return false;
  std::memset(workspace, 0xff, bytes);
  return true;
}

struct Performance {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math;
  int reserved[3];
};

// The fastest is not deterministic, the next is not supported, one needs too much memory, one rounds to half.
// With channels last the others are not supported.
int Propose(const Tensor& x, const Tensor& w, const Tensor& dy, const Convolution& c, int count,
            int* returned, Performance* performances) {
  const int math = MathOf(x.type), with_last = x.last ? kNotSupported : kSuccess;
  const Performance all[] = {{0, 0, 1, 0, 0, math, {}},
                             {2, kNotSupported, -1, 0, 1, math, {}},
                             {3, with_last, 2, size_t{1} << 40, 1, math, {}},
                             {4, with_last, 3, 0, 1, 2, {}},
                             {5, with_last, 4, kWorkspace, 1, math, {}},
                             {1, 0, 5, 0, 1, math, {}}};
  *returned = 0;
  if (Is("FAKE_CUDNN_CHOICE", "none") || !Takes(x, w, dy, c)) return kNotSupported;
  for (const Performance& performance : all) {
    if (*returned < count) performances[(*returned)++] = performance;
  }
  return kSuccess;
}

template <class T>
T& As(void* descriptor) {
  return *static_cast<T*>(descriptor);
}

}  // namespace

#define FAKE(result, name, ...) extern "C" __attribute__((visibility("default"))) result name(__VA_ARGS__)
#define FAKE_DESCRIPTOR(Kind, Type)                 \
  FAKE(int, cudnnCreate##Kind, void** descriptor) { \
    *descriptor = new Type();                       \
    return Creates("cudnnCreate" #Kind);            \
  }                                                 \
  FAKE(int, cudnnDestroy##Kind, void* descriptor) { \
    delete static_cast<Type*>(descriptor);          \
    return kSuccess;                                \
  }

FAKE_DESCRIPTOR(TensorDescriptor, Tensor)
FAKE_DESCRIPTOR(FilterDescriptor, Tensor)
FAKE_DESCRIPTOR(ConvolutionDescriptor, Convolution)

// The number of calls since the start that create anything, or choose an algorithm.
FAKE(int, fake_cudnn_calls_that_create, void) { return calls_that_create; }

FAKE(size_t, cudnnGetVersion, void) {
  const char* const text = std::getenv("FAKE_CUDNN_VERSION");
  return text == nullptr ? 91800 : std::strtoul(text, nullptr, 10);
}
FAKE(const char*, cudnnGetErrorString, int status) {
  return status == kExecutionFailed ? "CUDNN_STATUS_EXECUTION_FAILED" : "CUDNN_STATUS_OTHER";
}
FAKE(int, cudnnCreate, void** handle) {
  *handle = new Handle();
  return Creates("cudnnCreate");
}
FAKE(int, cudnnSetStream, void* handle, void* stream) {
  As<Handle>(handle).stream = stream;
  return Result("cudnnSetStream");
}
FAKE(int, cudnnSetTensorNdDescriptor, void* tensor, int type, int rank, const int dims[],
     const int strides[]) {
  if (rank < 4) return kBadParam;
  const std::vector<int> all(strides, strides + rank);
  Tensor result(type, rank, dims, false);
  if (result.strides != all) result = {type, rank, dims, true};
  if (result.strides != all) return kNotSupported;
  As<Tensor>(tensor) = result;
  return Result("cudnnSetTensorNdDescriptor");
}
FAKE(int, cudnnSetFilterNdDescriptor, void* filter, int type, int format, int rank, const int dims[]) {
  if (rank < 4 || (format != 0 && format != 1)) return kBadParam;
  As<Tensor>(filter) = {type, rank, dims, format == 1};
  return Result("cudnnSetFilterNdDescriptor");
}
FAKE(int, cudnnSetConvolutionNdDescriptor, void* convolution, int rank, const int pads[], const int strides[],
     const int dilations[], int mode, int type) {
  if (rank < 2 || mode != 1) return kBadParam;
  As<Convolution>(convolution) = {
      {pads, pads + rank}, {strides, strides + rank}, {dilations, dilations + rank}, type};
  return Result("cudnnSetConvolutionNdDescriptor");
}
FAKE(int, cudnnSetConvolutionGroupCount, void* convolution, int groups) {
  As<Convolution>(convolution).groups = groups;
  return Result("cudnnSetConvolutionGroupCount");
}
FAKE(int, cudnnSetConvolutionMathType, void* convolution, int math) {
  As<Convolution>(convolution).math = math;
  return Result("cudnnSetConvolutionMathType");
}
FAKE(int, cudnnGetConvolutionBackwardFilterAlgorithm_v7, void*, void* x, void* dy, void* convolution, void* w,
     int count, int* returned, Performance* performances) {
  const int result = Creates("cudnnGetConvolutionBackwardFilterAlgorithm_v7");
  if (result != kSuccess) return result;
  return Propose(As<Tensor>(x), As<Tensor>(w), As<Tensor>(dy), As<Convolution>(convolution), count, returned,
                 performances);
}
FAKE(int, cudnnGetConvolutionBackwardDataAlgorithm_v7, void*, void* w, void* dy, void* convolution, void* x,
     int count, int* returned, Performance* performances) {
  const int result = Creates("cudnnGetConvolutionBackwardDataAlgorithm_v7");
  if (result != kSuccess) return result;
  return Propose(As<Tensor>(x), As<Tensor>(w), As<Tensor>(dy), As<Convolution>(convolution), count, returned,
                 performances);
}
FAKE(int, cudnnGetConvolutionBackwardFilterWorkspaceSize, void*, void* x, void* dy, void* convolution,
     void* w, int algorithm, size_t* bytes) {
  if (!Takes(As<Tensor>(x), As<Tensor>(w), As<Tensor>(dy), As<Convolution>(convolution)))
    return kNotSupported;
  *bytes = algorithm == 5 ? kWorkspace : 0;
  return Result("cudnnGetConvolutionBackwardFilterWorkspaceSize");
}
FAKE(int, cudnnGetConvolutionBackwardDataWorkspaceSize, void*, void* w, void* dy, void* convolution, void* x,
     int algorithm, size_t* bytes) {
  if (!Takes(As<Tensor>(x), As<Tensor>(w), As<Tensor>(dy), As<Convolution>(convolution)))
    return kNotSupported;
  *bytes = algorithm == 5 ? kWorkspace : 0;
  return Result("cudnnGetConvolutionBackwardDataWorkspaceSize");
}
FAKE(int, cudnnConvolutionBackwardFilter, void* handle, const void* alpha, void* x, const void* x_data,
     void* dy, const void* dy_data, void* convolution, int algorithm, void* workspace, size_t bytes,
     const void* beta, void* dw, void* dw_data) {
  const Tensor &tx = As<Tensor>(x), &tdy = As<Tensor>(dy), &tdw = As<Tensor>(dw);
  const Convolution& c = As<Convolution>(convolution);
  if (handle == nullptr || !Runs(algorithm, c, tx.type, workspace, bytes) || !Takes(tx, tdw, tdy, c)) {
    return kNotSupported;
  }
  std::vector<double> sums(CountOf(tdw));
  const int result = ForEachProduct(tx, tdw, tdy, c, [&](size_t i, size_t j, size_t k) {
    sums[j] += Load(tx.type, x_data, i) * Load(tdy.type, dy_data, k);
  });
  if (result != kSuccess) return result;
  Blend(tdw, dw_data, sums, alpha, beta);
  return Result("cudnnConvolutionBackwardFilter");
}
FAKE(int, cudnnConvolutionBackwardData, void* handle, const void* alpha, void* w, const void* w_data,
     void* dy, const void* dy_data, void* convolution, int algorithm, void* workspace, size_t bytes,
     const void* beta, void* dx, void* dx_data) {
  const Tensor &tw = As<Tensor>(w), &tdy = As<Tensor>(dy), &tdx = As<Tensor>(dx);
  const Convolution& c = As<Convolution>(convolution);
  if (handle == nullptr || !Runs(algorithm, c, tw.type, workspace, bytes) || !Takes(tdx, tw, tdy, c)) {
    return kNotSupported;
  }
  std::vector<double> sums(CountOf(tdx));
  const int result = ForEachProduct(tdx, tw, tdy, c, [&](size_t i, size_t j, size_t k) {
    sums[i] += Load(tw.type, w_data, j) * Load(tdy.type, dy_data, k);
  });
  if (result != kSuccess) return result;
  Blend(tdx, dx_data, sums, alpha, beta);
  return Result("cudnnConvolutionBackwardData");
}

// Of the forward convolution, algorithm 0 takes all shapes, where that of the gradients is 1.
static int Swapped(int algorithm) { return algorithm < 2 ? 1 - algorithm : algorithm; }

FAKE(int, cudnnGetConvolutionForwardAlgorithm_v7, void*, void* x, void* w, void* convolution, void* y,
     int count, int* returned, Performance* performances) {
  int result = Creates("cudnnGetConvolutionForwardAlgorithm_v7");
  if (result != kSuccess) return result;
  result = Propose(As<Tensor>(x), As<Tensor>(w), As<Tensor>(y), As<Convolution>(convolution), count, returned,
                   performances);
  for (int i = 0; i < *returned; ++i) performances[i].algorithm = Swapped(performances[i].algorithm);
  return result;
}
FAKE(int, cudnnGetConvolutionForwardWorkspaceSize, void*, void* x, void* w, void* convolution, void* y,
     int algorithm, size_t* bytes) {
  if (!Takes(As<Tensor>(x), As<Tensor>(w), As<Tensor>(y), As<Convolution>(convolution))) return kNotSupported;
  *bytes = algorithm == 5 ? kWorkspace : 0;
  return Result("cudnnGetConvolutionForwardWorkspaceSize");
}
FAKE(int, cudnnConvolutionForward, void* handle, const void* alpha, void* x, const void* x_data, void* w,
     const void* w_data, void* convolution, int algorithm, void* workspace, size_t bytes, const void* beta,
     void* y, void* y_data) {
  const Tensor &tx = As<Tensor>(x), &tw = As<Tensor>(w), &ty = As<Tensor>(y);
  const Convolution& c = As<Convolution>(convolution);
  if (handle == nullptr || !Runs(Swapped(algorithm), c, tx.type, workspace, bytes) || !Takes(tx, tw, ty, c)) {
    return kNotSupported;
  }
  std::vector<double> sums(CountOf(ty));
  const int result = ForEachProduct(tx, tw, ty, c, [&](size_t i, size_t j, size_t k) {
    sums[k] += Load(tx.type, x_data, i) * Load(tw.type, w_data, j);
  });
  if (result != kSuccess) return result;
  Blend(ty, y_data, sums, alpha, beta);
  return Result("cudnnConvolutionForward");
}
